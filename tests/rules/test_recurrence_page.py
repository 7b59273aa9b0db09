"""The page on recurrence rules says what the code does, and its examples run."""

from __future__ import annotations

import doctest
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from django_durable_jobs.recurrence import Cron, Every, Recurrence, lint
from django_durable_jobs.recurrence.grammar import SHORTHANDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "recurrence.md").read_text()
YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def table(head: str) -> list[list[str]]:
    """Return the cells of the rows of the table with this head."""
    rows = PAGE.split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_what_is_typed_gives_what_is_shown() -> None:
    text = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(text, {}, "recurrence.md", None, None)
    assert doctest.DocTestRunner().run(test) == (0, len(test.examples))
    assert len(test.examples) > 15


def test_the_calls_are_those_of_a_rule() -> None:
    names = [re.findall(r"\w+", row[0])[0] for row in table("call | gives")]
    public = {name for name in vars(Recurrence) if not name.startswith("_")}
    assert set(names) == public - {"zone", "elapses"}


def test_the_shorthands_are_told() -> None:
    assert set(re.findall(r"`(@\w+)`", PAGE)) == set(SHORTHANDS)


def test_the_terms_mean_what_the_table_says() -> None:
    meanings = {row[0].strip("`"): row[1] for row in table("term | means")}
    assert Cron("5/20 * * * *").minute == {int(n) for n in re.findall("[0-9]+", "5, 25, 45")}
    for term, values in (("*/15", "0, 15, 30, 45"), ("9-17/4", "9, 13, 17"), ("5/20", "5, 25, 45")):
        assert values in meanings[term]
        assert Cron(f"{term} * * * *").minute == {int(value) for value in values.split(", ")}
    for term in meanings:
        field = 2 if "L" in term else 0
        Cron(" ".join([*"****"[:field], term, *"****"[field:]]))


def test_each_code_of_a_slip_has_an_example_that_gives_it() -> None:
    rows = {row[0].strip("`"): row[1] for row in table("code | for example")}
    for code, examples in rows.items():
        for expression in re.findall(r"`(\S+ \S+ \S+ \S+ \S+)`", examples):
            found = [slip.code for slip in lint(Cron(expression, "Europe/Vienna"), YEAR)]
            assert code in found, expression
    found = [slip.code for slip in lint(Every(timedelta(hours=7), "12:00", "UTC"), YEAR)]
    assert found == ["uneven-step"]
    source = (Path(lint.__code__.co_filename)).read_text()
    codes = set(re.findall(r'Slip\("([a-z-]+)"', source)) | {"gap", "overlap"}
    # No expression is known that gives it.
    assert codes - {"another-reading"} == set(rows)


def test_what_is_told_of_a_day_with_and_without_two_o_clock_is_so() -> None:
    for expression, spring, autumn in (("*/15 2 * * *", 0, 8), ("0,15,30,45 2 * * *", 1, 4)):
        cron = Cron(expression, "Europe/Vienna")
        for date, number in (("2026-03-29", spring), ("2026-10-25", autumn)):
            start = datetime.fromisoformat(f"{date}T00:00+00:00") - timedelta(hours=1)
            assert cron.count(start, start + timedelta(hours=20), 100)[0] == number
