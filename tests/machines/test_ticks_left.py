"""Ticks that a schedule leaves behind, when it is edited or gone: they never fire, and are told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_durable_jobs import fire_now, pause_schedule, resume_schedule
from django_durable_jobs.errors import InvalidJob, InvalidSchedule
from django_durable_jobs.models import Schedule, TickClaim, TickGap
from django_durable_jobs.registry import handlers, schedule, schedules
from django_durable_jobs.ticks import firing
from tests.clockwork import Clockwork, at, clockwork, end, fired, jobs, missed, row

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def work(transactional_db: None) -> Iterator[Clockwork]:
    with clockwork() as each:
        yield each


def take_out() -> None:
    """Take the schedule out of the code."""
    old = schedules.get("s")
    if old is not None:
        schedules.remove(old)
        if (handler := handlers.get("schedule:s")) is not None:
            handlers.remove(handler)


def declare(work: Clockwork, **options: Any) -> None:
    """Declare the schedule in place of what there was, and have the leader take it."""
    take_out()
    if "every" not in options:
        options = {"cron": "0 * * * *", "timezone": "UTC"} | options
    schedule("s", run=lambda: None, **options)
    work.start()


def remove(work: Clockwork) -> None:
    take_out()
    work.start()


GREEDY = {"catch_up": "all", "catch_up_window": 86_400}
HALF_HOURLY = {"cron": "*/30 * * * *", **GREEDY}


def test_what_an_outage_took_before_an_edit_is_told_and_never_fires(work: Clockwork) -> None:
    declare(work, **GREEDY)
    work.clock.move_to(at(16, 30))
    declare(work, **HALF_HOURLY)
    work.turn()
    assert missed("s") == [(at(13), at(16), 4, "edited")]
    assert TickClaim.objects.count() == 0
    work.go(at(17))
    assert fired("s") == [at(17)]


def test_what_an_outage_took_before_it_was_gone_from_the_code_is_told(work: Clockwork) -> None:
    declare(work, **GREEDY)
    work.clock.move_to(at(16, 30))
    remove(work)
    work.go(at(18, 30))
    assert missed("s") == [(at(13), at(16), 4, "gone")]
    declare(work, **GREEDY)
    work.go(at(19))
    assert fired("s") == [at(19)]
    assert len(missed("s")) == 1


def test_a_tick_that_is_a_moment_late_is_left_behind_too(work: Clockwork) -> None:
    declare(work)
    work.clock.move_to(at(13, 0, 1))
    declare(work, cron="30 * * * *")
    work.turn()
    assert (fired("s"), missed("s")) == ([], [(at(13), at(13), 1, "edited")])


def test_without_a_due_tick_an_edit_leaves_none(work: Clockwork) -> None:
    declare(work)
    work.go(at(12, 59))
    declare(work, **HALF_HOURLY)
    remove(work)
    assert TickGap.objects.count() == 0


def test_what_fell_into_a_pause_before_an_edit_is_told_as_that(work: Clockwork) -> None:
    declare(work)
    work.clock.move_to(at(13, 30))
    pause_schedule("s")
    work.clock.move_to(at(16, 30))
    declare(work, **HALF_HOURLY)
    assert missed("s") == [(at(13), at(13), 1, "edited"), (at(14), at(16), 3, "paused")]
    work.turn()
    assert len(missed("s")) == 2


def test_a_pause_that_was_over_before_an_edit_is_told_as_that(work: Clockwork) -> None:
    declare(work)
    work.clock.move_to(at(13, 30))
    pause_schedule("s")
    work.clock.move_to(at(15, 30))
    resume_schedule("s")
    work.clock.move_to(at(16, 30))
    remove(work)
    assert missed("s") == [
        (at(13), at(13), 1, "downtime"),
        (at(14), at(15), 2, "paused"),
        (at(16), at(16), 1, "gone"),
    ]


def test_of_two_pauses_that_no_leader_saw_each_is_told_as_one(work: Clockwork) -> None:
    declare(work)
    for begin, ends in ((at(12, 30), at(14, 30)), (at(15, 30), None)):
        work.clock.move_to(begin)
        pause_schedule("s")
        if ends is not None:
            work.clock.move_to(ends)
            resume_schedule("s")
    work.go(at(16, 30))
    assert missed("s") == [
        (at(13), at(14), 2, "paused"),
        (at(15), at(15), 1, "downtime"),
        (at(16), at(16), 1, "paused"),
    ]


def test_resuming_tells_what_was_missed_by_the_rule_of_the_row(work: Clockwork) -> None:
    """The code of whoever resumes it may be newer than the leader's."""
    declare(work)
    work.clock.move_to(at(14, 30))
    pause_schedule("s")
    take_out()
    schedule("s", cron="*/5 * * * *", run=lambda: None)
    resume_schedule("s")
    assert missed("s") == [(at(13), at(14), 2, "downtime")]


@pytest.mark.parametrize("edited", [True, False])
def test_a_tick_that_waits_is_skipped_with_the_reason(work: Clockwork, edited: bool) -> None:
    declare(work, overlap="queue")
    work.go(at(13))
    work.go(at(14))
    assert row("s").waiting == at(14)
    if edited:
        declare(work, **HALF_HOURLY)
    else:
        remove(work)
    assert row("s").waiting is None
    skipped = TickClaim.objects.filter(outcome="skipped").values_list("scheduled_at", "reason")
    assert list(skipped) == [(at(14), "edited" if edited else "gone")]
    assert TickGap.objects.count() == 0


def test_the_last_tick_of_all_waits_through_a_change_of_leaders(work: Clockwork) -> None:
    """A schedule without a next tick is not edited by being declared again."""
    declare(work, overlap="queue", end=at(14, 30))
    work.go(at(13))
    work.go(at(14))
    before = Schedule.objects.values().get()
    assert (before["waiting"], before["next_fire"]) == (at(14), None)
    work.clock.move_to(at(14, 10))
    work.epoch = work.lead()
    work.start()
    assert Schedule.objects.values().get() == before
    end(jobs("s")[0])
    work.go(60)
    assert fired("s") == [at(13), at(14)]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"every": 1}, 259_200),
        ({"every": 1, "baseline": "02:30", "timezone": "Europe/Vienna"}, 259_200),
        ({"cron": "* * * * *"}, 4_320),
        ({"cron": "*/7 * * * *"}, 648),
    ],
    ids=str,
)
def test_however_many_were_missed_they_are_one_stretch(
    work: Clockwork, options: dict[str, Any], count: int
) -> None:
    declare(work, **options)
    first = row("s").next_fire
    work.clock.move_to(at(12, day=7))
    declare(work, cron="0 0 * * *")
    assert missed("s") == [(first, at(12, day=7), count, "edited")]


def test_a_rule_that_is_none_here_any_more_costs_its_ledger_alone(work: Clockwork) -> None:
    declare(work)
    Schedule.objects.update(rule='{"cron":"0 * * * *","timezone":"Mars/Olympus"}')
    work.clock.move_to(at(16, 30))
    declare(work)
    assert TickGap.objects.count() == 0
    work.go(at(17))
    assert fired("s") == [at(17)]


# Made up for by hand


def test_a_tick_of_the_rule_of_then_can_be_made_up_for_after_an_edit(work: Clockwork) -> None:
    declare(work, every=1_000)
    grid = [at(12) + n * timedelta(seconds=1_000) for n in (1, 2, 3)]
    work.clock.move_to(at(13))
    declare(work, cron="*/20 * * * *")
    assert missed("s") == [(grid[0], grid[2], 3, "edited")]
    for tick in (at(12, 20), at(12, 40)):  # the new rule's: nobody was to fire then
        with pytest.raises(InvalidSchedule, match="missed no tick"):
            fire_now("s", tick=tick)
    with pytest.raises(InvalidSchedule, match="is no tick of 's'"):
        fire_now("s", tick=at(12, 30))
    for tick in grid:
        end(fire_now("s", tick=tick))
    assert fired("s", "manual") == grid


def test_a_tick_of_a_gap_is_one_of_its_grid_whatever_the_anchor_is_now(work: Clockwork) -> None:
    declare(work, every=1_000)
    work.go(at(13))
    work.go(at(13, 10))
    stretch = TickGap.objects.get()
    declare(work, every=500)
    declare(work, every=1_000)
    with pytest.raises(InvalidSchedule):
        fire_now("s", tick=stretch.first + timedelta(seconds=500))
    assert fire_now("s", tick=stretch.first).state == "queued"


# Those that cannot be put in


def test_what_was_missed_before_a_tick_that_cannot_fire_is_told(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise InvalidJob("payload: not today", field="payload", path="payload")

    declare(work, every=10, overlap="allow")
    monkeypatch.setattr(firing, "enqueue_many", refuse)
    work.go(at(12, 0, 35))
    assert (TickClaim.objects.count(), TickGap.objects.count()) == (0, 0)
    assert work.ticker is not None
    work.ticker._failing["s"].again_at = 0.0
    monkeypatch.undo()
    work.go(at(12, 0, 41))
    assert missed("s") == [(at(12, 0, 10), at(12, 0, 20), 2, "downtime")]
    assert fired("s", "skipped") == [at(12, 0, 30)]
    assert fired("s") == [at(12, 0, 40)]
