"""The command's own words: what it refuses, and with which exit code."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import OperationalError
from django.db.backends.base.introspection import BaseDatabaseIntrospection

from django_durable_jobs import enqueue, register_handler, schedule
from django_durable_jobs.db import statements_for, transaction
from django_durable_jobs.models import Worker
from django_durable_jobs.registry import handlers, schedules
from tests.factories import make_worker

pytestmark = pytest.mark.django_db(transaction=True)


def has(monkeypatch: pytest.MonkeyPatch, tables: Callable[[], list[str]]) -> None:
    """Have every connection find these tables."""
    monkeypatch.setattr(BaseDatabaseIntrospection, "table_names", lambda self: tables())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "--concurrency must be at least 1."),
        ({"processes": 0}, "--processes must be at least 1."),
        ({"max_jobs": 0}, "--max-jobs must be at least 1."),
        ({"grace": -1.0}, "--grace must be 0 or more seconds."),
        ({"grace": float("nan")}, "--grace must be 0 or more seconds."),
        ({"queues": "a", "exclude_queues": "b"}, "Give --queues or --exclude-queues, not both."),
        ({"queues": "", "exclude_queues": "b"}, "--queues names no queue."),
        ({"queues": " , "}, "--queues names no queue."),
        ({"exclude_queues": ""}, "--exclude-queues names no queue."),
        (
            {"namespace": ""},
            "--namespace is blank; accepted: text of 1 to 64 characters, not blank.",
        ),
        ({"database": "nosuch"}, "There is no database 'nosuch' in DATABASES."),
        ({"database": ""}, "There is no database '' in DATABASES."),
    ],
)
def test_wrong_usage_is_refused_with_code_2(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("runscheduler", **options)
    assert str(refused.value) == message
    assert refused.value.returncode == 2


def test_a_database_without_our_tables_is_told_to_be_migrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has(monkeypatch, lambda: ["auth_user"])
    with pytest.raises(CommandError, match=r"has no tables for jobs: run `manage\.py migrate`"):
        call_command("runscheduler")


def test_a_burst_tells_in_a_line_of_a_database_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> list[str]:
        raise OperationalError("connection refused\n\tIs the server running?")

    has(monkeypatch, refused)
    with pytest.raises(CommandError) as told:
        call_command("runscheduler", burst=True)
    assert str(told.value) == (
        "The database 'default' cannot be reached: OperationalError: connection refused"
        " Is the server running?"
    )
    assert told.value.returncode == 1


def test_the_checks_are_asked_about_the_jobs_own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def check(self: object, **options: Any) -> None:
        asked.append(options["databases"])

    monkeypatch.setattr("django.core.management.base.BaseCommand.check", check)
    call_command("runscheduler", burst=True, skip_checks=False, verbosity=0)
    assert asked == [["default"]]


def test_a_wrong_setting_is_told_of_as_the_checks_tell_of_it(settings: Any) -> None:
    settings.DURABLE_JOBS = {"NAMESPACE": 7, "DATABASE": "nosuch"}
    with pytest.raises(SystemCheckError, match=r"durable_jobs\.E003"):
        call_command("runscheduler", skip_checks=False)


def test_it_says_nothing_where_nothing_is_wanted() -> None:
    out = io.StringIO()
    with handlers.preserved():
        register_handler("it", lambda: None)
        job = enqueue("it")
        call_command("runscheduler", burst=True, verbosity=0, stdout=out, stderr=out)
    job.refresh_from_db()
    assert (job.state, out.getvalue()) == ("completed", "")


def greeting(**options: Any) -> list[str]:
    out = io.StringIO()
    call_command("runscheduler", burst=True, stdout=out, **options)
    return out.getvalue().splitlines()


def test_it_greets_with_its_whole_id_what_it_runs_and_who_leads() -> None:
    with handlers.preserved(), schedules.preserved():
        for number in range(8):
            schedule(f"s{number}", run=lambda: None, every=3_600)
        lines = greeting()
        worker = Worker.objects.get()
        assert lines[0] == f"Worker {worker.pk}, process {worker.pid}"
        assert "  schedules  s0, s1, s2, s3, s4, s5 and 2 more" in lines
        assert "  leader     nobody yet" in lines
        leader = make_worker(host="web-1", pid=7)
        with transaction("default") as inside:
            statements_for(inside).take_lead("default", leader.pk, lease=30)
        lines = greeting(schedules=False)
    assert any(line.endswith("and 2 more; never fired here (--no-schedules)") for line in lines)
    assert "  leader     web-1:7" in lines


def test_it_greets_machines_with_the_same() -> None:
    with handlers.preserved(), schedules.preserved():
        schedule("s", run=lambda: None, every=3_600)
        told = json.loads(greeting(log_format="json")[0])
    assert (told["event"], told["schedules"], told["leader"]) == ("start", ["s"], None)


@pytest.mark.parametrize("options", [{"processes": 2}, {"reload": True}])
def test_a_supervisor_is_refused_where_no_command_line_can_be_run_again(
    options: dict[str, Any],
) -> None:
    with pytest.raises(CommandError, match=r"start `manage\.py runscheduler` itself") as refused:
        call_command("runscheduler", **options)
    assert refused.value.returncode == 2
