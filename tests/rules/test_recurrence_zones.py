"""Where clocks change: cron expressions beside a plain walk, and beside cronsim.

Normally around some changes of many kinds; with DDJ_EVERY_ZONE=1 around each change of every IANA
zone from 1970 to 2036, which takes the better part of an hour.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from django_durable_jobs.recurrence import Cron, Every

from .walking import HOUR, MINUTE, Turn, Walk, turns, utc, zone_names

DAY = timedelta(days=1)

EVERYTHING = os.environ.get("DDJ_EVERY_ZONE", "0") != "0"
PARTS = 40 if EVERYTHING else 1

FIXED = ["30 2 * * *", "0 0 * * *", "15,45 0-4,23 * * *", "0-59 0-23 * * *", "59 23 28-31 * 0"]
ELAPSING = ["*/15 * * * *", "* 2 * * *", "30 * * * *", "*/20 1 * * *", "7 */3 * * *", "* * * * *"]

SPECIAL = ["30 2 L * *", "15 1,2 * * sun#1,sun#2", "0 3 * * L7", "30 2 1 * L7"]

# A zone and a moment before a change of its clocks.
ODD = [
    ("America/New_York", "2026-03-01"),
    ("America/New_York", "2026-10-25"),
    ("Europe/Dublin", "2026-03-20"),  # summer is standard time there
    ("Europe/Vienna", "2026-10-20"),
    ("America/Havana", "2026-03-01"),  # at midnight
    ("America/Sao_Paulo", "2018-10-30"),  # over midnight
    ("America/Sao_Paulo", "2019-02-10"),  # back over midnight
    ("America/St_Johns", "2010-03-10"),  # one minute after midnight
    ("America/St_Johns", "2010-11-05"),  # back over midnight, at 00:01
    ("Asia/Beirut", "2026-03-25"),
    ("Africa/Cairo", "2026-04-20"),
    ("Africa/Casablanca", "2026-02-10"),
    ("Africa/Casablanca", "2026-03-20"),
    ("Australia/Lord_Howe", "2026-04-01"),  # by half an hour
    ("Australia/Lord_Howe", "2026-10-01"),
    ("Antarctica/Troll", "2026-03-25"),  # by two hours
    ("Antarctica/Troll", "2026-10-20"),
    ("Antarctica/Casey", "2020-10-01"),  # by three
    ("Pacific/Apia", "2011-12-25"),  # a whole day left out
    ("Pacific/Chatham", "2026-04-01"),  # at 02:45 and 03:45
    ("Asia/Pyongyang", "2015-08-10"),
    ("America/Caracas", "2007-12-05"),
    ("America/Cambridge_Bay", "2000-10-25"),  # two changes in one
    ("Europe/Simferopol", "1996-10-20"),
    ("Asia/Aqtau", "1995-09-20"),
]


@cache
def all_turns() -> list[Turn]:
    """Return the changes to look at, of those that zones have in common one."""
    if not EVERYTHING:
        return [next(turns(zone, utc(after), utc(after) + 30 * DAY, HOUR)) for zone, after in ODD]
    found: dict[tuple[datetime, timedelta, timedelta], Turn] = {}
    for zone in zone_names():
        for turn in turns(zone, utc("1970-01-01"), utc("2037-01-01"), 3 * HOUR):
            found.setdefault((turn.at, turn.before, turn.after), turn)
    return list(found.values())


def part(number: int) -> list[Turn]:
    return all_turns()[number::PARTS]


def on_whole_minutes(turn: Turn) -> bool:
    return not (turn.before % MINUTE or turn.after % MINUTE)


def on_whole_hours(turn: Turn) -> bool:
    """Tell whether cronsim can follow: it steps by hours, and loses what is between."""
    wall = turn.at.replace(tzinfo=None) + turn.before
    return not (turn.shift % HOUR) and wall.minute == wall.second == 0


def stepped(cron: Cron, after: datetime, until: datetime) -> list[datetime]:
    fires = []
    while (after := cron.next_fire(after)) <= until:
        fires.append(after)
    return fires


@pytest.mark.timeout(3600 if EVERYTHING else 60)
@pytest.mark.parametrize("number", range(PARTS))
def test_fires_are_those_of_a_walk_from_minute_to_minute(number: int) -> None:
    looked_at = 0
    for turn in filter(on_whole_minutes, part(number)):
        after, until = turn.at - 8 * HOUR - 17 * MINUTE, turn.at + 25 * HOUR
        walk = Walk(ZoneInfo(turn.zone), after, until)
        for expression in FIXED + ELAPSING:
            cron = Cron(expression, turn.zone)
            fires = walk.fires(cron)
            assert stepped(cron, after, until) == fires, (turn, expression)
            assert cron.count(after, until, 10_000) == (len(fires), (fires or [None])[-1])
            # The same looked at backwards, from moments on both sides of the change.
            for until_then in (turn.at - HOUR, turn.at, turn.at + HOUR / 2, turn.at + 2 * HOUR):
                newest = max((fire for fire in fires if fire <= until_then), default=None)
                assert cron.last_fire(after, until_then) == newest, (turn, expression, until_then)
            looked_at += len(fires)
    assert looked_at > 1_000


@pytest.mark.timeout(3600 if EVERYTHING else 60)
@pytest.mark.parametrize("number", range(PARTS))
def test_fires_are_those_of_cronsim(number: int) -> None:
    looked_at = 0
    for turn in filter(on_whole_hours, part(number)):
        after, until = turn.at - 26 * HOUR, turn.at + 26 * HOUR
        for expression in [*SPECIAL, *FIXED, *ELAPSING]:
            cron = Cron(expression, turn.zone)
            fires = []
            theirs = CronSim(expression.replace("L7", "7L"), after.astimezone(ZoneInfo(turn.zone)))
            while (fire := next(theirs).astimezone(UTC)) <= until:
                # It gives the end of a gap once for every time that the gap left out.
                if fire not in fires[-1:]:
                    fires.append(fire)
            assert stepped(cron, after, until) == fires, (turn, expression)
            looked_at += len(fires)
    assert looked_at > 1_000


@pytest.mark.timeout(3600 if EVERYTHING else 60)
@pytest.mark.parametrize("number", range(PARTS))
def test_a_chain_from_a_baseline_keeps_its_steps_and_never_fails_when_clocks_change(
    number: int,
) -> None:
    for turn in filter(on_whole_minutes, part(number)):
        after, until = turn.at - 30 * HOUR, turn.at + 50 * HOUR
        wall = (turn.at.replace(tzinfo=None) + max(turn.before, turn.after)) - HOUR / 2
        for baseline in ("00:00", "02:30", f"{wall:%H:%M}"):
            starts = Cron(f"{int(baseline[3:])} {int(baseline[:2])} * * *", turn.zone)
            for interval in (HOUR, timedelta(hours=5, minutes=7), DAY):
                every = Every(interval, baseline, turn.zone)
                expected = []
                start = starts.last_fire(after - 3 * DAY, after)
                assert start is not None
                while start <= until:
                    following = starts.next_fire(start)
                    fire = start
                    while fire < following:
                        expected.append(fire)
                        fire = following if interval == DAY else fire + interval
                    start = following
                expected = [fire for fire in expected if after < fire <= until]
                fires = []
                moment = after
                while (moment := every.next_fire(moment)) <= until:
                    fires.append(moment)
                assert fires == expected, (turn, every)
                assert every.count(after, until, 10_000) == (len(fires), fires[-1])
                assert every.last_fire(after, until) == fires[-1]
