"""Rules in words, likely slips, and marks at changes of the clocks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import translation
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_jobs.recurrence import (
    Cron,
    Every,
    InvalidRecurrence,
    Recurrence,
    lint,
    preview_lines,
)

from .walking import utc

VIENNA = "Europe/Vienna"
MARCH = utc("2026-03-01 00:00")


def slips(rule: Recurrence) -> list[tuple[str, str]]:
    return [(slip.code, slip.message) for slip in lint(rule, MARCH)]


@pytest.mark.parametrize(
    ("expression", "code", "message"),
    [
        (
            "* 5 * * *",
            "every-minute",
            "fires every minute of hour 5; did you mean `0 5 * * *`?",
        ),
        (
            "* 5,9-11 * * mon",
            "every-minute",
            "fires every minute of hours 5 and 9 to 11; did you mean `0 5,9-11 * * mon`?",
        ),
        (
            "* */12 * * *",
            "every-minute",
            "fires every minute of hours 0 and 12; did you mean `0 */12 * * *`?",
        ),
        (
            "* * 1 * *",
            "every-minute",
            "fires every minute of its days; did you mean `0 0 1 * *`?",
        ),
        (
            "0 0 31 * *",
            "missing-day",
            "day 31: skips February, April, June, September and November; "
            "`L` is the last day of every month",
        ),
        (
            "0 0 30 * *",
            "missing-day",
            "day 30: skips February; `L` is the last day of every month",
        ),
        (
            "0 0 29 * *",
            "missing-day",
            "day 29: skips February except in leap years; `L` is the last day of it",
        ),
        ("0 0 29 2 *", "missing-day", "29 February comes in leap years only"),
        (
            "0 0 13 * fri",
            "either-day",
            "fires on days that match either of `13` and `fri`, not only both",
        ),
        (
            "0 0 1-31 * fri",
            "either-day",
            "fires every day: either day field is enough, and `1-31` is every day",
        ),
        (
            "0 0 13 * 0-6",
            "either-day",
            "fires every day: either day field is enough, and `0-6` is every day",
        ),
        (
            "0 0 */2 * mon",
            "both-days",
            "a day must match both `*/2` and `mon`, since one of them begins with *",
        ),
        (
            "*/7 * * * *",
            "uneven-step",
            "`*/7` does not divide 60 minutes: after 56 comes 0",
        ),
        ("0 */5 * * *", "uneven-step", "`*/5` does not divide 24 hours: after 20 comes 0"),
        ("0 0 1 */5 *", "uneven-step", "`*/5` does not divide 12 months: after 11 comes 1"),
    ],
)
def test_a_likely_slip_is_told_of(expression: str, code: str, message: str) -> None:
    assert slips(Cron(expression, "UTC")) == [(code, message)]


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "* * * * *",
            "0 5 * * *",
            "*/15 9-17 * * mon-fri",
            "@yearly",
            "0 0 L * *",
            "0 0 31,L * *",
        ),
        *("0 0 31 1 *", "0 0 30 jan,mar *", "0 0 1-31 * *", "0 0 25-31 * *", "0 0 * * fri#2"),
        *("*/7,3 * * * *", "*/20 */6 * */3 *", "*/60 * * * *", "0 0 13 * *", "30 2 * * *"),
    ],
)
def test_what_is_likely_meant_is_passed_over(expression: str) -> None:
    assert slips(Cron(expression, "UTC")) == []


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            Cron("30 2 * * *", VIENNA),
            [
                ("gap", "on 2026-03-29 02:30 does not exist in Europe/Vienna: fires at 03:00"),
                (
                    "overlap",
                    "on 2026-10-25 02:30 comes twice in Europe/Vienna: fires the first time only",
                ),
            ],
        ),
        (
            Cron("*/15 2 * * *", VIENNA),
            [
                (
                    "gap",
                    "on 2026-03-29 02:00 does not exist in Europe/Vienna: does not fire then",
                ),
                (
                    "overlap",
                    "on 2026-10-25 02:00 comes twice in Europe/Vienna: fires both times",
                ),
            ],
        ),
        (Cron("30 2 29 3 *", "Europe/London"), []),
        (
            Cron("30 1 29 3 *", "Europe/London"),
            [("gap", "on 2026-03-29 01:30 does not exist in Europe/London: fires at 02:00")],
        ),
        (Cron("30 3 * * *", VIENNA), []),
        (Cron("30 * * * *", VIENNA), []),
        (Cron("30 2 * * mon", VIENNA), []),
        (
            Cron("0 0 * * *", "America/Havana"),
            [
                ("gap", "on 2026-03-08 00:00 does not exist in America/Havana: fires at 01:00"),
                (
                    "overlap",
                    "on 2026-11-01 00:00 comes twice in America/Havana: fires the first time only",
                ),
            ],
        ),
        (
            Every(21_600, "2:30", VIENNA),
            [
                ("gap", "on 2026-03-29 02:30 does not exist in Europe/Vienna: fires at 03:00"),
                (
                    "overlap",
                    "on 2026-10-25 02:30 comes twice in Europe/Vienna: fires the first time only",
                ),
            ],
        ),
        (
            Every(25_200, "12:00", VIENNA),
            [
                (
                    "uneven-step",
                    "the interval does not divide a day: the step before each 12:00 is shorter",
                )
            ],
        ),
        (Every(25_200, timezone=VIENNA), []),
    ],
    ids=repr,
)
def test_times_that_the_clocks_leave_out_or_show_twice_are_told_of(
    rule: Recurrence, told: list[tuple[str, str]]
) -> None:
    assert slips(rule) == told


def test_a_change_of_the_clocks_that_is_over_is_not_told_of() -> None:
    rule = Cron("30 2 * * *", VIENNA)
    codes = [slip.code for slip in lint(rule, utc("2026-03-29 00:59"))]
    assert codes == ["gap", "overlap", "gap"]
    for later in ("2026-03-29 01:00", "2026-03-29 12:00"):
        [first, *_] = lint(rule, utc(later))
        assert first.message.startswith("on 2026-10-25 ")


def test_a_slip_is_told_in_the_readers_language() -> None:
    with translation.override("de"):
        [(_, message)] = slips(Cron("0 0 30 * *", "UTC"))
        assert "Februar" in message
        assert "Montag" in Cron("0 0 * 3 mon").in_words()


def lists_of(*terms: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(terms), min_size=1, max_size=3).map(",".join)


@settings(deadline=None)
@given(
    st.tuples(
        lists_of("*", "*/7", "*/20", "0", "0-59", "5/10", "59"),
        lists_of("*", "*/5", "*/12", "0", "2", "0-23", "22/1"),
        lists_of("*", "*/2", "1", "L", "29", "31", "1-31", "30/1"),
        lists_of("*", "*/5", "1", "feb", "2-12", "dec"),
        lists_of("*", "*/2", "0-7", "sun", "fri#5", "L0", "mon-fri"),
    ).map(" ".join)
)
def test_every_rule_can_be_told_and_looked_over(expression: str) -> None:
    try:
        cron = Cron(expression, VIENNA)
    except InvalidRecurrence as error:
        assert error.code == "cron-no-fire"  # noqa: PT017
        return
    assert cron.in_words()
    assert cron.describe()
    assert all(slip.message for slip in lint(cron, MARCH))


@pytest.mark.parametrize(
    ("rule", "line", "words"),
    [
        (Cron("0 2 * * *", VIENNA), "cron 0 2 * * * Europe/Vienna", "at 02:00, every day"),
        (Cron("@daily"), "cron 0 0 * * * Europe/Vienna", "at 00:00, every day"),
        (
            Cron("15,45 9-17 * * mon-fri", "UTC"),
            "cron 15,45 9-17 * * mon-fri UTC",
            "at minutes 15 and 45 of hours 9 to 17, on Monday to Friday",
        ),
        (Cron("* * * * *"), "cron * * * * * Europe/Vienna", "every minute, every day"),
        (Cron("*/5 * * * *"), "cron */5 * * * * Europe/Vienna", "every 5 minutes, every day"),
        (
            Cron("30 * * 1,2,3,11 *"),
            "cron 30 * * 1,2,3,11 * Europe/Vienna",
            "at minute 30 of every hour, every day, in January to March and November",
        ),
        (
            Cron("*/10 8 * * *"),
            "cron */10 8 * * * Europe/Vienna",
            "every 10 minutes of hour 8, every day",
        ),
        (
            Cron("0 */2 * * *"),
            "cron 0 */2 * * * Europe/Vienna",
            "at minute 0 of hours 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20 and 22, every day",
        ),
        (
            Cron("0 6,18 1,15,L * fri#2,L7"),
            "cron 0 6,18 1,15,L * fri#2,L7 Europe/Vienna",
            "at 06:00 and 18:00, on days 1, 15 and the last day of the month "
            "or on the last Sunday and the second Friday",
        ),
        (
            Cron("0 0 L 2 *"),
            "cron 0 0 L 2 * Europe/Vienna",
            "at 00:00, on the last day of the month, in February",
        ),
        (
            Cron("0 0 */15 * 5-7"),
            "cron 0 0 */15 * 5-7 Europe/Vienna",
            "at 00:00, on days 1, 16 and 31 if it is also on Friday to Sunday",
        ),
        (
            Every(300, "2:30", "UTC"),
            "every 300 s from 02:30 UTC",
            "every 5 minutes, from 02:30 each day",
        ),
        (Every(300), "every 300 s", "every 5 minutes"),
        (Every(1), "every 1 s", "every second"),
        (Every(1.5), "every 1.5 s", "every 1.5 seconds"),
        (Every(60), "every 60 s", "every minute"),
        (Every(3600), "every 3600 s", "every hour"),
        (Every(timedelta(hours=36)), "every 129600 s", "every 36 hours"),
        (Every(timedelta(days=1)), "every 86400 s", "every day"),
        (Every(timedelta(days=36_525)), "every 3155760000 s", "every 36525 days"),
        (Every(90), "every 90 s", "every 90 seconds"),
    ],
    ids=repr,
)
def test_a_rule_is_told_in_a_line_and_in_words(rule: Recurrence, line: str, words: str) -> None:
    assert rule.describe() == line
    assert rule.in_words() == words


def marks(rule: Recurrence, n: int, after: str) -> list[str]:
    return [
        f"{line.local:%H:%M} {line.utc:%H:%M} {line.mark}".strip()
        for line in preview_lines(rule, n, utc(after))
    ]


@pytest.mark.parametrize(
    ("rule", "after", "lines"),
    [
        (
            Cron("30 2 * * *", VIENNA),
            "2026-03-27 12:00",
            ["02:30 01:30", "03:00 01:00 gap", "02:30 00:30"],
        ),
        (Cron("30 2 * * *", VIENNA), "2026-10-24 12:00", ["02:30 00:30 overlap", "02:30 01:30"]),
        (Cron("0 3 * * *", VIENNA), "2026-03-28 12:00", ["03:00 01:00", "03:00 01:00"]),
        (Cron("0 4 * * *", VIENNA), "2026-03-28 12:00", ["04:00 02:00", "04:00 02:00"]),
        (
            Cron("0,30 2-3 * * *", VIENNA),
            "2026-03-28 12:00",
            ["03:00 01:00 gap", "03:30 01:30", "02:00 00:00"],
        ),
        (
            Cron("*/30 * * * *", VIENNA),
            "2026-03-29 00:10",
            ["01:30 00:30", "03:00 01:00 gap", "03:30 01:30", "04:00 02:00"],
        ),
        (
            Cron("0 * * * *", VIENNA),
            "2026-10-24 22:30",
            ["01:00 23:00", "02:00 00:00 overlap", "02:00 01:00 overlap", "03:00 02:00"],
        ),
        (
            Every(3600, "02:30", VIENNA),
            "2026-03-29 00:00",
            ["01:30 00:30", "03:00 01:00 gap", "04:00 02:00"],
        ),
        (
            Every(3600, anchor=utc("2026-10-24 00:30"), timezone=VIENNA),
            "2026-10-24 23:00",
            ["01:30 23:30", "02:30 00:30 overlap", "02:30 01:30 overlap", "03:30 02:30"],
        ),
    ],
    ids=repr,
)
def test_a_preview_marks_where_an_hour_is_missing_or_repeats(
    rule: Recurrence, after: str, lines: list[str]
) -> None:
    assert marks(rule, len(lines), after) == lines


def test_a_preview_tells_local_and_utc_times_of_the_same_fires() -> None:
    rule = Cron("*/40 * * * *", "America/New_York")
    lines = preview_lines(rule, 5, MARCH)
    assert [line.utc for line in lines] == rule.preview(5, MARCH)
    assert [line.local for line in lines] == [line.utc for line in lines]
    assert {str(line.local.tzinfo) for line in lines} == {"America/New_York"}
    assert preview_lines(rule, 0, MARCH) == []
