"""Expressions without changes of the clocks: ours beside croniter's on plain lists of numbers."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest
from croniter import croniter
from croniter.croniter import CroniterBadDateError

from django_durable_jobs.recurrence import Cron, InvalidRecurrence, lint
from django_durable_jobs.recurrence.opinion import second_opinion

EVERYTHING = os.environ.get("DDJ_EVERY_ZONE", "0") != "0"
EXPRESSIONS = 20_000 if EVERYTHING else 2_000

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def number(chance: random.Random, low: int, high: int, names: list[str]) -> str:
    value = chance.randint(low, high)
    if names and chance.random() < 0.3:
        name = names[value - low]
        return chance.choice([name, name.upper(), name.title()])
    return str(value)


def term(chance: random.Random, low: int, high: int, names: list[str]) -> str:
    step = f"/{chance.randint(1, high - low + 1)}"
    kind = chance.random()
    if kind < 0.15:
        return "*" + chance.choice(["", step])
    if kind < 0.5:
        return number(chance, low, high, names) + chance.choice(["", "", step])
    first, last = sorted((chance.randint(low, high), chance.randint(low, high)))
    return f"{first}-{last}" + chance.choice(["", step])


def expression(chance: random.Random) -> str:
    fields = []
    for low, high, names in [(0, 59, []), (0, 23, []), (1, 31, []), (1, 12, MONTHS)]:
        terms = [term(chance, low, high, names) for _ in range(chance.choice([1, 1, 2, 3]))]
        fields.append("*" if chance.random() < 0.3 else ",".join(terms))
    fields.append("*" if chance.random() < 0.4 else weekdays(chance, fields[2] == "*"))
    return " ".join(fields)


def weekdays(chance: random.Random, alone: bool) -> str:
    # croniter wants both day fields to match where one has a #, whatever it is told.
    if alone and chance.random() < 0.2:
        return chance.choice([f"{chance.randint(0, 6)}#{chance.randint(1, 5)}", "L5", "0#1,L0"])
    terms = [term(chance, 0, 6, WEEKDAYS), "7", "5-7", "sat-sun"]
    return ",".join(chance.choices(terms, k=chance.choice([1, 1, 2])))


@pytest.mark.timeout(600)
def test_random_expressions_fire_when_croniter_says() -> None:
    chance = random.Random(20261130)
    start = datetime(2000, 1, 1, tzinfo=UTC)
    refused, silent = [], []
    for _ in range(EXPRESSIONS):
        text = expression(chance)
        after = start + timedelta(seconds=chance.randrange(40 * 365 * 86_400))
        try:
            cron = Cron(text, "UTC")
        except InvalidRecurrence as error:
            refused.append((error.code, text))
            continue
        theirs = second_opinion(cron, after.replace(tzinfo=None))
        if theirs is None:
            silent.append(text)
        else:
            assert cron.next_fire(after) == theirs.replace(tzinfo=UTC), (text, after)
    assert {code for code, _ in refused} <= {"cron-no-fire"}, refused
    assert len(refused) < EXPRESSIONS / 20
    assert len(silent) < EXPRESSIONS / 100, silent


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 feb */3"])
def test_what_is_refused_as_never_coming_never_comes_for_croniter(text: str) -> None:
    with pytest.raises(CroniterBadDateError):
        croniter(text, datetime(2026, 1, 1), day_or=False).get_next()


def test_an_expression_that_croniter_reads_otherwise_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule, after = Cron("30 2 * * *", "UTC"), datetime(2026, 1, 1, tzinfo=UTC)
    assert lint(rule, after) == []
    other = datetime(2026, 1, 1, 5, 0)
    module = import_module("django_durable_jobs.recurrence.lint")  # the function hides it
    monkeypatch.setattr(module, "second_opinion", lambda *_: other)
    (slip,) = lint(rule, after)
    assert slip.code == "another-reading"
    assert "2026-01-01 05:00:00, not at 2026-01-01 02:30:00" in slip.message
