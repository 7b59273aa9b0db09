"""S2 parseCron, and S1's parse and parseField: how a cron expression is read."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_jobs.recurrence import Cron, InvalidRecurrence


def refused(expression: Any) -> str:
    with pytest.raises(InvalidRecurrence) as caught:
        Cron(expression)
    assert caught.value.code == "invalid-cron"
    return str(caught.value)


@pytest.mark.parametrize("expression", [None, 7, "", "   ", ["0 2 * * *"]])
def test_parse_cron_needs_text(expression: Any) -> None:
    refused(expression)


def test_parse_cron_returns_five_sets_and_the_expression() -> None:
    cron = Cron("0 2 * * *")
    assert cron.expression == "0 2 * * *"
    assert (cron.minute, cron.hour) == ({0}, {2})
    assert cron.dom == set(range(1, 32))
    assert cron.month == set(range(1, 13))
    assert cron.dow == set(range(7))


@pytest.mark.parametrize(
    ("shorthand", "expression"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        (" @Hourly\n", "0 * * * *"),
    ],
)
def test_parse_cron_knows_the_shorthands(shorthand: str, expression: str) -> None:
    assert Cron(shorthand) == Cron(expression)
    assert Cron(shorthand).expression == expression


def test_parse_cron_trims_and_takes_any_blanks_between() -> None:
    assert Cron("\t0  2\t* * *\n").expression == "0 2 * * *"


@pytest.mark.parametrize("number", [1, 4, 6, 7])
def test_parse_cron_wants_five_fields(number: int) -> None:
    assert f"has {number} fields; accepted: the five minute, hour" in refused("* " * number)


@pytest.mark.parametrize("expression", ["1,,2 * * * *", "* ,5 * * *", "* * 5, * *"])
def test_parse_cron_refuses_an_empty_term(expression: str) -> None:
    assert "is an empty term" in refused(expression)


@pytest.mark.parametrize("expression", ["*/0 * * * *", "*/-2 * * * *", "*/ * * * *", "*/x * * * *"])
def test_parse_cron_refuses_a_bad_step(expression: str) -> None:
    assert "field minute" in refused(expression)
    assert "has no step" in refused(expression)


def test_parse_cron_refuses_a_step_larger_than_the_field() -> None:
    assert "larger than the field (1 to 60)" in refused("*/99999 * * * *")
    assert "field hour" in refused("0 */25 * * *")
    assert Cron("*/60 * * * *").minute == {0}


def test_parse_cron_step_of_the_day_of_week_is_at_most_7() -> None:
    """changed: the seed takes 8, counting Sunday twice."""
    assert "larger than the field (1 to 7)" in refused("0 0 * * */8")
    assert Cron("0 0 * * */7").dow == {0}


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of week"),
        ("20-10 * * * *", "minute"),
        ("* * 1-32 * *", "day of month"),
    ],
)
def test_parse_cron_refuses_what_is_out_of_range(expression: str, field: str) -> None:
    assert f"field {field}:" in refused(expression)


def test_parse_cron_reads_lists_ranges_and_steps() -> None:
    assert Cron("1,2,50 * * * *").minute == {1, 2, 50}
    assert Cron("* 9-17/4 * * *").hour == {9, 13, 17}
    assert Cron("*/25,7 * * * *").minute == {0, 7, 25, 50}
    assert Cron("* * * 3-3 *").month == {3}


def test_parse_cron_takes_0_and_7_for_sunday() -> None:
    assert Cron("* * * * 7").dow == Cron("* * * * 0").dow == {0}
    assert Cron("* * * * 5-7").dow == {5, 6, 0}


def test_parse_field_a_step_behind_a_number_runs_to_the_end() -> None:
    """changed: the seeds read `5/20` as 5 alone."""
    assert Cron("5/20 * * * *").minute == {5, 25, 45}
    assert Cron("* * * * 1/2").dow == {1, 3, 5}


@pytest.mark.parametrize(
    "expression",
    [
        *("5abc * * * *", "1.9 * * * *", "0x10 * * * *", "1e1 * * * *", "+5 * * * *"),
        *("*/5/2 * * * *", "*/2.9 * * * *", "\u0665 * * * *", "\uff15 * * * *"),
    ],
)
def test_parse_cron_refuses_what_is_no_plain_number(expression: str) -> None:
    """changed: the seeds read what the number begins with, or nothing."""
    assert "Cron field minute: '" in refused(expression)


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\ufeff"])
def test_parse_cron_takes_only_ascii_blanks(blank: str) -> None:
    """changed: the seed takes every blank that JavaScript knows."""
    refused(f"0{blank}2 * * *")


def test_parse_cron_takes_names_and_last_days() -> None:
    """changed: the seeds know numbers only."""
    assert Cron("0 0 * JAN,mar Mon-fri").month == {1, 3}
    assert Cron("0 0 * JAN,mar Mon-fri").dow == {1, 2, 3, 4, 5}
    assert Cron("0 0 L * *").fields.last_dom
    assert Cron("0 0 * * fri#2,L5").fields.nth_dow == {(5, 2), (5, -1)}


def test_parse_cron_is_at_most_256_characters_long() -> None:
    """changed: the seed has no limit."""
    assert "accepted: at most 256" in refused("0" * 300 + " * * * *")


def test_parse_cron_restricted_is_what_does_not_begin_with_a_star() -> None:
    """changed: the seed counts values, so that `1-31` is no restriction and `*/2` is one."""
    assert Cron("0 0 1-31 * 1").fields.any_day_field
    assert not Cron("0 0 */2 * 1").fields.any_day_field


def test_parse_never_returns_null() -> None:
    """changed: S1 returns null for what it cannot read."""
    refused("not a cron")
