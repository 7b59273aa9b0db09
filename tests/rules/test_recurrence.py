"""Recurrence rules as values: what they hold, refuse and keep to, whatever the rule."""

from __future__ import annotations

import copy
import io
import pickle
import struct
from datetime import UTC, datetime, time, timedelta, timezone
from itertools import pairwise
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_jobs.recurrence import (
    Cron,
    Every,
    InvalidRecurrence,
    Recurrence,
    next_baseline_fire,
)

from .walking import utc, zone_names

DAY = timedelta(days=1)
NOON = utc("2026-11-30 12:00")

ZONES = [
    "UTC",
    "Europe/Vienna",
    "America/New_York",
    "America/Havana",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Africa/Monrovia",
]


def refused(code: str, words: str) -> Any:
    def check(error: BaseException) -> bool:
        return isinstance(error, InvalidRecurrence) and error.code == code and words in str(error)

    return pytest.RaisesExc(InvalidRecurrence, check=check)


# A busy machine is no reason to fail.
unhurried = settings(deadline=None)


# Values


@pytest.mark.parametrize(
    ("given", "expression"),
    [
        ("  0 2 * * *\n", "0 2 * * *"),
        ("0\t2   * * *", "0 2 * * *"),
        ("@Weekly", "0 0 * * 0"),
        (" @DAILY ", "0 0 * * *"),
        ("0 0 l JAN-Mar FRI#2,l5", "0 0 L jan-mar fri#2,L5"),
        ("00 02 * * 7", "00 02 * * 7"),
        ("0 0 * jul *", "0 0 * jul *"),
    ],
)
def test_the_expression_is_normalised(given: str, expression: str) -> None:
    assert Cron(given).expression == expression
    assert Cron(given) == Cron(expression)


def test_the_fields_are_sets_and_sunday_is_0() -> None:
    cron = Cron("*/20 1-3,22 L,15 jan,dec/1 fri-sun,mon#2,L3")
    assert cron.minute == {0, 20, 40}
    assert cron.hour == {1, 2, 3, 22}
    assert cron.dom == {15}
    assert cron.month == {1, 12}
    assert cron.dow == {5, 6, 0}
    assert cron.fields.last_dom
    assert cron.fields.nth_dow == {(1, 2), (3, -1)}
    assert isinstance(cron.dow, frozenset)
    assert Cron("* * * * 0-7").dow == Cron("* * * * *").dow == frozenset(range(7))
    assert Cron("* * * * sun").dow == Cron("* * * * sun-sun").dow == Cron("* * * * 7/2").dow == {0}


RULES: list[Recurrence] = [
    Cron("0 2 * * *"),
    Cron("0 2 * * *", "Europe/Vienna"),
    Cron("0 2 * * *", "UTC"),
    Cron("0 2 * * 1", "UTC"),
    Every(300),
    Every(301),
    Every(300, "02:30"),
    Every(300, "02:31"),
    Every(300, "02:30", "UTC"),
    Every(300, anchor=NOON),
    Every(300, anchor=NOON + DAY),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_rule_is_a_value(rule: Recurrence) -> None:
    assert [rule == other for other in RULES].count(True) == 1
    for same in (copy.copy(rule), copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
        assert same == rule
        assert hash(same) == hash(rule)
        assert same.preview(3, NOON) == rule.preview(3, NOON)
        assert repr(same) == repr(rule)
    names = {"Cron": Cron, "Every": Every, "datetime": __import__("datetime")}
    assert eval(repr(rule), names) == rule
    for name in ("timezone", "interval", "expression", "novel"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(rule, name, 5)


def test_ways_to_say_the_same_interval_are_equal() -> None:
    assert Every(300) == Every(300.0) == Every(timedelta(minutes=5))
    assert Every(300, "2:30") == Every(300, "02:30") == Every(300, time(2, 30))
    local = NOON.astimezone(ZoneInfo("Asia/Tokyo"))
    assert Every(300, anchor=local) == Every(300, anchor=NOON) == Every(300).with_anchor(local)
    assert Every(300, anchor=local).anchor == NOON
    assert Every(300, "02:30").with_anchor(NOON) == Every(300, "02:30")


def test_moments_come_in_utc_whatever_zone_they_are_asked_in() -> None:
    tokyo = NOON.astimezone(ZoneInfo("Asia/Tokyo"))
    for rule in RULES:
        assert rule.next_fire(tokyo) == rule.next_fire(NOON)
        assert rule.next_fire(tokyo).tzinfo is UTC
        assert rule.last_fire(tokyo, tokyo + DAY) == rule.last_fire(NOON, NOON + DAY)


# Time zones


def test_no_time_zone_means_the_projects_as_it_is_when_asked() -> None:
    cron, every = Cron("0 2 * * *"), Every(DAY, "02:00")
    for name, hour in (("Europe/Vienna", 1), ("America/New_York", 7), ("UTC", 2)):
        with override_settings(TIME_ZONE=name):
            expected = datetime(2026, 12, 1, hour, tzinfo=UTC)
            assert cron.next_fire(utc("2026-11-30 23:00")) == expected
            assert every.next_fire(utc("2026-11-30 23:00")) == expected
            assert next_baseline_fire("02:00", None, utc("2026-11-30 23:00")) == expected
            assert cron.timezone is None
            assert cron.zone.key == name
            assert cron.describe() == f"cron 0 2 * * * {name}"


def test_a_zone_info_is_kept_by_its_name() -> None:
    vienna = ZoneInfo("Europe/Vienna")
    for one, same in (
        (Cron("0 2 * * *", vienna), Cron("0 2 * * *", "Europe/Vienna")),  # type: ignore[arg-type]
        (Every(DAY, "02:00", vienna), Every(DAY, "02:00", "Europe/Vienna")),
    ):
        assert (one, hash(one), repr(one)) == (same, hash(same), repr(same))
        assert one.timezone == "Europe/Vienna"
        assert pickle.loads(pickle.dumps(one)) == same
    assert next_baseline_fire("02:00", "Europe/Vienna", NOON) == utc("2026-12-01 01:00")


def nameless_zone(key: str | None = None) -> ZoneInfo:
    """Return a zone as whoever reads the host's own file has it."""
    counts, offset = struct.pack(">6l", 0, 0, 0, 0, 1, 4), struct.pack(">lbb", 0, 0, 0)
    return ZoneInfo.from_file(io.BytesIO(b"TZif" + bytes(16) + counts + offset + b"UTC\0"), key)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "''"),
        ("Europe/Wien", "Europe/Wien"),
        ("europe/vienna", "did you mean Europe/Vienna?"),
        ("../etc/passwd", "'../etc/passwd'"),
        ("/usr/share/zoneinfo/UTC", "accepted: an IANA name"),
        ("posixrules", "'posixrules'"),
        ("localtime", "'localtime'"),
        ("Factory", "'Factory'"),
        ("posix/Europe/Vienna", "'posix/Europe/Vienna'"),
        ("right/UTC", "'right/UTC'"),
        ("Europe", "'Europe'"),
        ("Europe/", "'Europe/'"),
        ("leapseconds", "'leapseconds'"),
        ("zone.tab", "'zone.tab'"),
        ("Europe//Vienna", "'Europe//Vienna'"),
        ("Europe/../UTC", "'Europe/../UTC'"),
        ("\ud800", "'\\ud800'"),
        ("Europe/Vienna\x00", "'Europe/Vienna\\x00'"),
        ("x" * 10_000, "'xxxxx"),
        (5, "of type int"),
        (UTC, "of type timezone"),
        (nameless_zone(), "of type ZoneInfo"),
        (nameless_zone("localtime"), "'localtime'"),
    ],
)
def test_a_time_zone_is_an_iana_name(name: Any, words: str) -> None:
    for make in (
        lambda: Cron("0 2 * * *", name),
        lambda: Every(60, timezone=name),
        lambda: next_baseline_fire("02:00", name, NOON),
    ):
        with refused("invalid-timezone", words) as caught:
            make()
        assert len(str(caught.value)) < 250


def test_every_iana_name_is_known_and_none_is_read_twice() -> None:
    for name in zone_names():
        assert Cron("0 2 * * *", name).zone.key == name
    assert Cron("0 2 * * *", "Europe/Vienna").zone is Cron("5 * * * *", "Europe/Vienna").zone


# What is refused


@pytest.mark.parametrize("given", [None, 5, b"0 2 * * *", ["0 2 * * *"]])
def test_an_expression_is_text(given: Any) -> None:
    with refused("invalid-cron", f"not {type(given).__name__}"):
        Cron(given)


def test_a_letter_of_another_script_is_no_name() -> None:
    for text in ("@wee\u212aly", "0 0 * \uff4aan *", "0 0 * * \u017fun"):
        with refused("invalid-cron", "accepted: "):
            Cron(text)


def test_an_expression_is_at_most_256_characters_long() -> None:
    longest = ",".join(["10"] * 80) + ",59,10,15 * * * *"
    assert len(longest) == 256
    assert Cron(f"{' ' * 1000}{longest} ").minute == {10, 15, 59}
    with refused("invalid-cron", "has 257 characters; accepted: at most 256"):
        Cron(longest + "1")
    with refused("invalid-cron", "has 2000000 characters"):
        Cron("\x00" * 2_000_000)


@pytest.mark.parametrize(
    "given",
    [
        *(0, 0.999, -5, timedelta(), timedelta(microseconds=999_999), float("nan"), float("inf")),
        *(10**400, timedelta(days=36_525, microseconds=1), 36_525 * 86_400.1),
    ],
)
def test_an_interval_is_between_a_second_and_a_hundred_years(given: Any) -> None:
    with refused("invalid-interval", "accepted: 1 second to 100 years"):
        Every(given)


@pytest.mark.parametrize("given", [None, "300", True, [300]])
def test_an_interval_is_a_time(given: Any) -> None:
    with refused("invalid-interval", f"of type {type(given).__name__}; accepted: a timedelta"):
        Every(given)


def test_a_chain_from_a_baseline_has_steps_of_a_day_at_most() -> None:
    assert Every(DAY, "02:30").interval == DAY
    with refused("invalid-interval", "accepted with a baseline: a day at most"):
        Every(DAY + datetime.resolution, "02:30")


@pytest.mark.parametrize(
    "given",
    [
        "24:00",
        "2:60",
        "02:30:00",
        "230",
        "2.30",
        "-2:30",
        " 02:30",
        "02:30\n",
        "٠٢:٣٠",
        "",
        "x" * 999,
        time(2, 30, 1),
        time(2, 30, tzinfo=UTC),
        5,
        2.5,
    ],
)
def test_a_baseline_is_a_time_of_day(given: Any) -> None:
    for make in (lambda: Every(60, given), lambda: next_baseline_fire(given, "UTC", NOON)):
        with refused("invalid-baseline", "accepted: a time of day HH:MM") as caught:
            make()
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 200


def test_a_rule_has_a_baseline_or_an_anchor() -> None:
    with refused("invalid-baseline", "Both baseline and anchor are given"):
        Every(60, "02:30", anchor=NOON)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_moments_must_be_aware_datetimes(rule: Recurrence) -> None:
    with pytest.raises(ValueError, match="after is naive; accepted: an aware datetime"):
        rule.next_fire(datetime(2026, 11, 30))
    with pytest.raises(TypeError, match="until is of type str"):
        rule.last_fire(NOON, "2026-11-30")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="until is naive"):
        rule.count(NOON, datetime(2026, 12, 30), 5)
    far = datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))
    with pytest.raises(ValueError, match="after is out of range"):
        rule.preview(1, far)
    with pytest.raises(ValueError, match="anchor is naive"):
        Every(60, anchor=datetime(2026, 11, 30))


@pytest.mark.parametrize("rule", [*RULES, Cron("@yearly"), Cron("*/7 * * * *")], ids=repr)
def test_at_the_end_of_time_there_is_no_fire(rule: Recurrence) -> None:
    end = datetime.max.replace(tzinfo=UTC)
    with refused("cron-no-fire", "has no fire before the year 9999"):
        rule.next_fire(end)
    last = rule.last_fire(utc("9990-01-01"), end - 2 * DAY)
    assert last is not None
    assert last > utc("9997-01-01")


# Steps


@pytest.mark.parametrize(
    ("rule", "shortest"),
    [
        (Cron("* * * * *"), 60),
        (Cron("*/7 * * * *"), 240),
        (Cron("5 * * * *"), 3_600),
        (Cron("0,50 9-17 * * *"), 600),
        (Cron("0 0,23 * * *"), 3_600),
        (Cron("0 0,23 * * mon,thu"), 23 * 3_600),
        (Cron("30 2 * * *"), 86_400),
        (Cron("30 2 * * mon"), 7 * 86_400),
        (Cron("30 2 1 * *"), 28 * 86_400),
        (Cron("30 2 1,L * *"), 86_400),
        (Cron("30 2 29 2 *"), 1_461 * 86_400),
        (Every(90), 90),
        (Every(timedelta(hours=7), "02:30"), 3 * 3_600),
        (Every(timedelta(hours=6), "02:30"), 6 * 3_600),
        (Every(DAY, "02:30"), 86_400),
    ],
    ids=repr,
)
def test_the_shortest_step(rule: Recurrence, shortest: int) -> None:
    assert rule.shortest_step == timedelta(seconds=shortest)


# What every rule keeps to


CHANGES = [
    *("2026-03-08 07:00", "2026-11-01 06:00", "2026-03-29 01:00", "2026-10-25 01:00"),
    *("2026-04-04 15:00", "2026-10-03 15:30", "2011-12-30 10:00", "1972-01-07 00:44:30"),
    *("2010-11-07 02:31", "2026-02-15 02:00", "2026-03-08 05:00"),
]
moments = st.one_of(
    st.datetimes(datetime(1970, 1, 3), datetime(2040, 1, 1), timezones=st.just(UTC)),
    # Where clocks change in one or another of the zones.
    st.builds(
        datetime.__add__,
        st.sampled_from(CHANGES).map(utc),
        st.timedeltas(timedelta(hours=-30), timedelta(hours=30)),
    ),
)
zones = st.sampled_from(ZONES)


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    step = st.integers(1, min(high - low + 1, 30)).map("*/{}".format)
    several = st.lists(number, min_size=1, max_size=4).map(lambda n: ",".join(map(str, n)))
    spread = st.tuples(number, number).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    return st.one_of(st.just("*"), st.just("*"), step, several, spread)


expressions = st.tuples(
    _field(0, 59),
    _field(0, 23),
    st.one_of(_field(1, 28), st.just("L")),
    _field(1, 12),
    st.one_of(_field(0, 7), st.sampled_from(["fri#2", "L0", "mon-fri"])),
).map(" ".join)


def ever_comes(expression: str) -> bool:
    try:
        Cron(expression)
    except InvalidRecurrence:
        return False
    return True


crons = st.builds(Cron, expressions.filter(ever_comes), zones)
baselines = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))
intervals = st.one_of(
    st.integers(1, 86_400).map(float),
    st.sampled_from([1.5, 60.0, 900.0, 3600.0, 86_400.0]),
    st.floats(1, 86_400),
)
everies = st.one_of(
    st.builds(Every, intervals, baselines, zones),
    st.builds(Every, intervals, st.none(), zones, moments),
)
rules = st.one_of(crons, everies)


@unhurried
@given(rules, moments)
def test_fires_are_later_one_after_the_other(rule: Recurrence, after: datetime) -> None:
    fires = rule.preview(6, after)
    assert all(one < other for one, other in pairwise([after, *fires]))


@unhurried
@given(rules, moments, st.lists(st.floats(0, 1), max_size=6))
def test_the_next_fire_is_the_same_from_every_moment_before_it(
    rule: Recurrence, after: datetime, parts: list[float]
) -> None:
    first, second = rule.preview(2, after)
    instant = datetime.resolution
    for part in [*parts, 0, 1]:
        assert rule.next_fire(min(after + (first - after) * part, first - instant)) == first
        assert rule.next_fire(min(first + (second - first) * part, second - instant)) == second


@unhurried
@given(rules, moments, st.integers(0, 200), st.timedeltas(timedelta(), DAY))
def test_counting_and_looking_back_agree_with_stepping(
    rule: Recurrence, after: datetime, number: int, more: timedelta
) -> None:
    fires = rule.preview(number + 1, after)
    wanted, following = fires[:-1], fires[-1]
    last = wanted[-1] if wanted else None
    until = min((last or after) + more, following - datetime.resolution)
    assert rule.count(after, until, number + 5) == (number, last)
    assert rule.last_fire(after, until) == last
    if number:
        half = (number + 1) // 2
        assert rule.count(after, until, half) == (half, wanted[half - 1])
        assert rule.count(after, until, 0) == (0, None)
    assert rule.count(until, after, 5) == (0, None)
    assert rule.last_fire(until, after) is None


@unhurried
@given(crons, moments)
def test_a_cron_fires_where_its_fields_match_or_behind_a_gap(cron: Cron, after: datetime) -> None:
    fire = cron.next_fire(after)
    wall = fire.astimezone(cron.zone).replace(tzinfo=None)
    if cron.next_wall(wall - datetime.resolution) != wall:
        just_before = (fire - timedelta(seconds=1)).astimezone(cron.zone).replace(tzinfo=None)
        lost = cron.next_wall(just_before)
        assert not cron.elapses
        assert just_before < lost < wall


@unhurried
@given(everies, moments)
def test_an_interval_is_kept_between_two_fires_or_cut_short_by_a_baseline(
    every: Every, after: datetime
) -> None:
    fires = every.preview(5, after)
    for one, other in pairwise(fires):
        if every.baseline is None:
            assert other - one == every.interval
        elif every.interval < DAY:
            assert other - one <= every.interval
            if other - one < every.interval:
                assert other == next_baseline_fire(every.baseline, every.timezone, one)
        else:
            assert other == next_baseline_fire(every.baseline, every.timezone, one)


@unhurried
@given(baselines, zones, moments)
def test_each_local_day_reaches_its_baseline_once(
    baseline: str, zone: str, after: datetime
) -> None:
    fires = Every(DAY, baseline, zone).preview(5, after)
    # As the fixed cron expression has it.
    hour, minute = map(int, baseline.split(":"))
    assert fires == Cron(f"{minute} {hour} * * *", zone).preview(5, after)


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("America/St_Johns", "2010-11-07 02:31"),  # back over midnight, a minute after it
        ("Europe/Vienna", "2026-03-29 01:00"),
        ("Europe/Vienna", "2026-10-25 01:00"),
        ("Pacific/Apia", "2011-12-30 10:00"),
    ],
)
@pytest.mark.parametrize("hours", [-30, -0.5, -0.01, 0.5, 4.5])
def test_every_minute_is_every_minute_of_elapsed_time(zone: str, change: str, hours: float) -> None:
    cron = Cron("* * * * *", zone)
    after = utc(change) + timedelta(hours=hours)
    until = after + 2 * DAY
    last = until.replace(second=0)
    assert cron.count(after, until, 10_000) == (2 * 1440, last)
    assert cron.last_fire(after, until) == last


def test_a_day_that_comes_again_keeps_the_chain_it_has_begun() -> None:
    # A minute after midnight the clocks went back to 23:01 of the day before.
    midnight = utc("2010-11-07 02:30")
    every = Every(600, "00:00", "America/St_Johns")
    for minute in range(0, 120, 7):
        after = midnight + timedelta(minutes=minute)
        following = midnight + timedelta(minutes=minute // 10 * 10 + 10)
        assert every.next_fire(after) == following
        assert every.last_fire(after, following) == following
        assert every.count(midnight - DAY, after, 1_000)[0] == 144 + minute // 10
        assert next_baseline_fire("00:00", "America/St_Johns", after) == utc("2010-11-08 03:30")


def test_a_hundred_years_take_little_time() -> None:
    after, until = utc("1970-01-01"), utc("2070-01-01")
    started = process_time()
    assert Cron("0 0 29 2 *", "UTC").last_fire(after, until) == utc("2068-02-29")
    assert Cron("* * * * *", "UTC").last_fire(after, until) == until
    assert Cron("0 0 29 2 */7", "UTC").last_fire(after, until) == utc("2060-02-29")
    assert Every(1, anchor=after).count(after, until, 10**12)[0] == 36_525 * 86_400
    assert Every(1, "02:30", "UTC").last_fire(after, until) == until
    with pytest.raises(InvalidRecurrence):
        Cron("* * 31 2,4,6,9,11 *")
    assert process_time() - started < 0.2


@given(expressions.filter(ever_comes), moments)
@unhurried
def test_no_two_fires_are_nearer_than_the_shortest_step(expression: str, after: datetime) -> None:
    rule = Cron(expression, "UTC")
    fires = rule.preview(50, after)
    assert min(later - earlier for earlier, later in pairwise(fires)) >= rule.shortest_step
