"""The page of schedules says what the code does, and its examples run."""

from __future__ import annotations

import doctest
import re
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from django_durable_jobs import checks, fire_now, schedule
from django_durable_jobs.models import Schedule, TickClaim
from django_durable_jobs.registry import (
    JobOptions,
    ScheduleOptions,
    handlers,
    schedules,
)
from tests.clockwork import clockwork

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schedules.md").read_text()
OPTION = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \|", re.MULTILINE)
CHECK = re.compile(r"^\| `(durable_jobs\.\w+)` \|", re.MULTILINE)


@pytest.fixture(autouse=True)
def _own_registries() -> Iterator[None]:
    with handlers.preserved(), schedules.preserved():
        yield


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(each) for each in found]


def test_every_option_has_a_row() -> None:
    table = PAGE.split("## Options")[1].split("\n## ")[0]
    names = [name for row in OPTION.findall(table) for name in re.findall(r"\w+", row)]
    options = [*ScheduleOptions.__annotations__, *JobOptions.__annotations__]
    assert names == options


def test_every_check_of_schedules_has_a_row() -> None:
    own = re.compile(r"durable_jobs\.[EWI]03\d")
    ids = [value for value in vars(checks).values() if isinstance(value, str) and own.match(value)]
    assert CHECK.findall(PAGE) == ids


def test_the_example_declares_what_the_page_says() -> None:
    (example,) = blocks("python")
    names: dict[str, object] = {"__name__": "shop.jobs"}
    exec(example, names)
    declared = {each.name: each for each in schedules.all()}
    assert {name: each.type for name, each in declared.items()} == {
        "daily-report": "report.send",
        "nightly-cleanup": "schedule:nightly-cleanup",
        "rotate-keys": "schedule:rotate-keys",
        "rotate-logs": "schedule:rotate-logs",
        "weekly-report": "report.send",
    }
    assert declared["weekly-report"].payload == {"kind": "weekly"}
    assert checks.check_schedules() == []


def test_what_is_typed_gives_what_is_shown() -> None:
    runner = doctest.DocTestRunner()
    for number, text in enumerate(blocks("pycon")):
        test = doctest.DocTestParser().get_doctest(text, {}, f"block {number}", None, None)
        assert runner.run(test).failed == 0
    assert runner.tries > 0


@pytest.mark.django_db(transaction=True)
def test_the_ledger_is_asked_as_the_page_says() -> None:
    """Both ways: a tick that was skipped, and the same tick inside a gap."""
    (example,) = blocks("py")
    *given, claims, gaps = example.strip().splitlines()
    names: dict[str, object] = {"datetime": datetime, "ZoneInfo": ZoneInfo}
    exec("\n".join(given), names)
    assert (eval(claims, names).count(), eval(gaps, names).count()) == (0, 0)
    with clockwork(datetime(2026, 5, 3, 12, tzinfo=UTC)) as work:
        schedule("nightly-cleanup", cron="0 2 * * *", timezone="Europe/Vienna", run=lambda: None)
        work.turn()
        fire_now("nightly-cleanup")
        work.go(datetime(2026, 5, 4, 0, 0, 5, tzinfo=UTC))
        assert [each.reason for each in eval(claims, names)] == ["overlap"]
        TickClaim.objects.all().delete()
        Schedule.objects.update(next_fire=datetime(2026, 5, 4, tzinfo=UTC))
        work.go(datetime(2026, 5, 4, 12, tzinfo=UTC))
        assert [each.reason for each in eval(gaps, names)] == ["downtime"]
