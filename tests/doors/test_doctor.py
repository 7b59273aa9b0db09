"""`manage.py durablejobs doctor`: what it finds, how it tells it, and that it never crashes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections
from django.db.migrations.recorder import MigrationRecorder

from django_durable_jobs import pause, pause_schedule, register_handler, schedule
from django_durable_jobs.claims import NEVER
from django_durable_jobs.db import use_clock
from django_durable_jobs.db.engine import Engine
from django_durable_jobs.doctor import Finding, examine, ground, load, service
from django_durable_jobs.models import Job, QueueEntry, Schedule, Worker
from django_durable_jobs.states import State
from tests.app.models import Reminder
from tests.clockwork import Clockwork, at, clockwork, end, jobs
from tests.factories import make_job, make_worker, now

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def work(transactional_db: None) -> Iterator[Clockwork]:
    """A namespace that is well: a worker that leads, and a schedule that it knows."""
    with clockwork() as each:
        schedule("s", run=lambda: None, cron="0 * * * *")
        each.start()
        make_worker(
            pk=each.worker,
            host="web-1",
            pid=7,
            heartbeat_at=at(12),
            types=["test.job", "schedule:s"],
        )
        yield each


def found(work: Clockwork, **asked: Any) -> dict[str, list[Finding]]:
    """Return the findings by their code."""
    told: dict[str, list[Finding]] = {}
    for each in examine(host_clock=lambda: work.clock.value, **asked):
        told.setdefault(each.code, []).append(each)
    return told


def wrong(work: Clockwork, code: str, **asked: Any) -> list[tuple[str, str]]:
    """Return severity and message of what is not well there."""
    told = found(work, **asked)
    return [(each.severity, each.message) for each in told[code] if each.severity != "ok"]


@contextmanager
def options_of(connection: Any, **options: Any) -> Iterator[None]:
    """Let the project have these OPTIONS as well."""
    given = connection.settings_dict["OPTIONS"]
    before = dict(given)
    given.update(options)
    yield
    given.clear()
    given.update(before)


def run(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("durablejobs", "doctor", *arguments, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


# As a whole


def test_where_all_is_well_it_says_so_of_each_thing(work: Clockwork) -> None:
    told = found(work)
    assert {each.severity for findings in told.values() for each in findings} == {"ok"}
    assert set(told) == {
        *("settings", "database", "tables", "clock", "workers", "leader", "schedules", "queue"),
        *("interrupted", "loops"),
    }
    assert told["workers"][0].message == "1 live, 0 of 4 slots busy."
    assert told["leader"][0].message == "web-1:7 leads."


def test_it_is_a_screen_and_an_exit_code(work: Clockwork) -> None:
    with connection_clock(work):
        make_job(type="nobody.knows")
        code, text = run()
        lines = text.splitlines()
        assert code == 1
        assert lines[0] == "Namespace default in the database default:"
        index = next(n for n, line in enumerate(lines) if "nobody.knows" in line)
        assert lines[index].split()[:2] == ["problem", "queue"]
        assert lines[index + 1].strip().startswith("→ Start a worker")
        told = json.loads(run("--json")[1])
    assert (told["namespace"], told["database"], told["worst"]) == ("default", "default", "problem")
    codes = {each["code"]: each["severity"] for each in told["findings"]}
    assert (codes["queue"], codes["tables"]) == ("problem", "ok")


def connection_clock(work: Clockwork) -> Any:
    """Let the database's clock stand where this host's is: the command compares them."""
    work.clock.move_to(now())
    Worker.objects.update(heartbeat_at=work.clock.value)
    Schedule.objects.update(next_fire=work.clock.value + timedelta(hours=1))
    work.lead()
    return use_clock(work.clock)


def test_warnings_alone_are_0(work: Clockwork) -> None:
    with connection_clock(work):
        make_job(State.INTERRUPTED)
        code, text = run()
    assert code == 0, text
    assert text.splitlines()[-1] == "1 warning."


def test_it_reads_only_and_costs_the_same_however_much_there_is(
    work: Clockwork,
) -> None:
    for _ in range(50):
        make_job()
        make_job(State.INTERRUPTED)
    statements: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        statements.append(sql)
        return execute(sql, *rest)

    real = ground.engine

    def engine(own: Any, *rest: Any) -> Any:
        own.execute_wrappers.append(note)
        return real(own, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ground, "engine", engine)
        examine()
        few = [sql for sql in statements if "django_durable_jobs" in sql.lower()]
        for _ in range(50):
            make_job()
            make_job(State.INTERRUPTED)
        statements.clear()
        examine()
    many = [sql for sql in statements if "django_durable_jobs" in sql.lower()]
    assert len(many) == len(few) < 60
    assert all(sql.lstrip().startswith(("SELECT", "PRAGMA", "SHOW", "WITH")) for sql in many)


# It never crashes


def test_a_database_that_is_away_is_a_problem_and_the_rest_is_left_out(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any, **options: Any) -> Any:
        raise OperationalError("connection refused\n  is it running?")

    monkeypatch.setattr(type(connections["default"]), "get_new_connection", away)
    told = found(work)
    assert set(told) == {"settings", "database"}
    (problem,) = told["database"]
    assert problem.severity == "problem"
    assert "cannot be reached: OperationalError: connection refused is it" in problem.message
    code, text = run()
    assert (code, "cannot be reached" in text) == (1, True)


def test_missing_tables_are_told_as_everywhere(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker._meta, "db_table", "django_durable_jobs_nosuch")
    (problem,) = found(work)["tables"]
    assert problem.message == (
        "The database 'default' has no tables for jobs: run `manage.py migrate` first."
    )


def test_what_cannot_be_read_is_a_problem_and_the_rest_is_looked_at(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise OperationalError("no such column: x")

    monkeypatch.setattr(load, "interrupted", broken)
    told = found(work)
    assert told["interrupted"] == [
        Finding(
            "interrupted",
            "problem",
            "It could not be looked at: OperationalError: no such column: x",
        )
    ]
    assert told["loops"][0].severity == "ok"


def test_settings_that_are_wrong_are_told_first(settings: Any) -> None:
    settings.DURABLE_JOBS = {"CONCURENCY": 4, "LEASE": 5}
    code, text = run()
    assert code == 1
    assert "has the unknown key 'CONCURENCY'" in text
    assert "→ Did you mean 'CONCURRENCY'?" in text
    assert "at least two HEARTBEATs" in text
    assert json.loads(run("--json")[1])["namespace"] is None


def test_wrong_usage_is_refused() -> None:
    for arguments in (["--database", "nosuch"], ["--max-age", "soon"], ["--namespace", " "]):
        with pytest.raises(CommandError):
            run(*arguments)


# What it stands on


def test_migrations_that_are_not_applied_are_named(work: Clockwork) -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("django_durable_jobs", "0001_initial")
    try:
        assert wrong(work, "tables") == [
            ("problem", "Migrations are not applied: django_durable_jobs.0001_initial.")
        ]
    finally:
        recorder.record_applied("django_durable_jobs", "0001_initial")


def test_columns_that_are_not_there_are_named(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = Job._meta.get_field("priority")
    monkeypatch.setattr(field, "column", "urgency")
    (told,) = [each for each in ground.tables(connection) if each.severity == "problem"]
    assert told.message == "The table django_durable_jobs_job lacks urgency."


@pytest.mark.parametrize(
    ("seconds", "severity", "told"),
    [
        (1.5, "ok", "agree"),
        (5, "warning", "This host's clock is 5 s ahead of the database's."),
        (-300, "problem", "This host's clock is 5 min behind the database's."),
    ],
)
def test_a_clock_that_goes_wrong_is_told(
    work: Clockwork, seconds: float, severity: str, told: str
) -> None:
    host = work.clock.value + timedelta(seconds=seconds)
    (finding,) = ground.clock(connection, lambda: host)
    assert finding.severity == severity
    assert told in finding.message


def test_the_engine_is_named_with_its_version(work: Clockwork) -> None:
    (first, *_) = found(work)["database"]
    name = {"sqlite": "SQLite 3.", "postgresql": "PostgreSQL 1"}.get(connection.vendor, "M")
    assert first.message.startswith(name)
    assert first.message.endswith("(default).")


@pytest.mark.parametrize(
    ("facts", "severity", "told"),
    [
        ({"journal_mode": "delete"}, "warning", "journal mode is delete"),
        ({"strict_isolation": "SERIALIZABLE"}, "warning", "isolated by SERIALIZABLE"),
        ({"is_pooled": True}, "warning", "new jobs are found every 1 s"),
        ({"not_innodb": ("a", "b")}, "problem", "Tables are not kept by InnoDB"),
        ({"journal_mode": "wal"}, "", ""),
    ],
)
def test_engines_are_judged(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch, facts: Any, severity: str, told: str
) -> None:
    engine = Engine(name="X", version="1", **facts)
    monkeypatch.setattr(ground, "engine_of", lambda *args: engine)
    bad = wrong(work, "database")
    assert [each for each, _ in bad] == [severity] * bool(severity)
    assert all(told in message for _, message in bad)


def test_an_isolation_level_that_the_project_raises_is_found(work: Clockwork) -> None:
    levels = {"postgresql": (4, "SERIALIZABLE"), "mysql": ("repeatable read", "REPEATABLE READ")}
    with options_of(connection, isolation_level=levels.get(connection.vendor, ("x", ""))[0]):
        told = wrong(work, "database")
    if connection.vendor == "sqlite":  # it has no such levels, and its driver refuses the option
        ((severity, message),) = told
        assert (severity, "cannot be reached: ValueError" in message) == ("problem", True)
    else:
        level = levels[connection.vendor][1]
        assert told == [("warning", f"The project's connections are isolated by {level}.")]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"GLOBAL_CONCURRENCY": 4, "OWNER_CONCURRENCY": 5}, "OWNER_CONCURRENCY (5) is more"),
        ({"GLOBAL_CONCURRENCY": 3}, "CONCURRENCY (4) is more than GLOBAL_CONCURRENCY (3)"),
        ({"ON_INTERRUPT": "requeue"}, "no handler here has max_attempts of 2 or more"),
    ],
)
def test_settings_that_contradict_each_other_are_told(
    work: Clockwork,
    settings: Any,
    given: dict[str, Any],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ground.handlers, "handlers", lambda: [])
    settings.DURABLE_JOBS = {**getattr(settings, "DURABLE_JOBS", {}), **given}
    ((severity, message),) = wrong(work, "settings")
    assert (severity, told in message) == ("warning", True)


# Who serves it


def test_without_a_live_worker_it_is_a_problem(work: Clockwork) -> None:
    Worker.objects.update(heartbeat_at=at(11, 50))
    assert wrong(work, "workers") == [
        ("problem", "No live worker serves the namespace."),
        ("warning", "No sign of life, and not signed off: web-1:7 for 10 min."),
    ]


def test_workers_in_trouble_and_stuck_threads_are_told(work: Clockwork) -> None:
    make_worker(host="web-2", pid=8, heartbeat_at=at(12), healthy=False, error="gone", stuck=2)
    told = found(work)["workers"]
    assert [(each.severity, each.message) for each in told] == [
        ("problem", "1 of 2 live workers is in trouble with the database."),
        ("warning", "Handlers do not end although they were told to: 2 in web-2:8."),
    ]
    assert "web-2:8: gone" in told[0].advice


def test_a_leader_that_is_missing_is_a_problem_only_where_there_are_schedules(
    work: Clockwork,
) -> None:
    told = "Nobody leads: schedules do not fire, and nothing old is deleted."
    work.clock.advance(60)
    assert wrong(work, "leader") == [("problem", told)]
    Schedule.objects.all().delete()
    with service.schedules.preserved():
        service.schedules.remove(service.schedules.get("s"))
        assert wrong(work, "leader") == [("warning", told)]


def test_a_leader_that_is_gone_is_told_until_another_takes_over(work: Clockwork) -> None:
    work.clock.advance(10)
    make_worker(heartbeat_at=work.clock.value)
    Worker.objects.filter(pk=work.worker).update(state="lost")
    told = found(work)["leader"]
    assert [(each.severity, each.advice) for each in told] == [
        ("warning", "In 20 s another one takes over by itself.")
    ]


def test_a_paused_namespace_is_told_with_who_and_why(work: Clockwork) -> None:
    pause("default", by="ann", reason="the disk is full")
    work.clock.advance(5)
    assert wrong(work, "pause") == [
        (
            "warning",
            "The namespace is paused for 5 s by ann (the disk is full): no job is claimed.",
        )
    ]


def test_schedules_that_want_looking_at_are_told(work: Clockwork) -> None:
    schedule("late", run=lambda: None, every=60)
    schedule("failed", run=lambda: None, every=7_200)
    schedule("lost", job="no.such", every=7_200)
    work.start()
    work.go(at(14))
    end(jobs("failed")[0], State.FAILED, error="ValueError: no")
    work.turn()
    pause_schedule("s", by="ann")
    Worker.objects.update(types=["test.job", "schedule:s", "schedule:failed"])
    work.clock.advance(120)
    schedule("new", run=lambda: None, every=60)
    service.schedules.remove(service.schedules.get("failed"))
    schedule("failed2", run=lambda: None, every=60)
    Schedule.objects.filter(name="s").update(when="cron 1 * * * * UTC")
    assert wrong(work, "schedules") == [
        ("problem", "1 overdue and not fired: late."),
        ("problem", "1 without a handler in this code: lost."),
        ("problem", "3 of a type that no live worker knows: failed2, late, new."),
        ("warning", "1 failed at the last run: failed."),
        ("warning", "1 paused: s by ann."),
        ("warning", "2 declared here and taken by no worker yet: failed2, new."),
        ("warning", "1 declared here with another rule than the workers': s."),
        ("warning", "1 fired by the workers and not declared in this code: failed."),
    ]


# What is to be done


def test_types_that_no_live_worker_knows_are_told_whether_put_off_or_due(work: Clockwork) -> None:
    make_job(type="due.one")
    make_job(type="parked", claimable_at=NEVER)
    make_job(type="test.job")
    QueueEntry.objects.filter(type="parked").update(due=False)
    ((severity, message),) = [
        each for each in wrong(work, "queue") if "types that no live worker knows" in each[1]
    ]
    assert severity == "problem"
    assert message.endswith("knows: parked (1), due.one (1).")


def test_queues_that_nobody_serves_are_told(work: Clockwork) -> None:
    Worker.objects.update(queues=["default", "b"], excluded_queues=["b"])
    for queue in ("a", "b", "default"):
        make_job(queue=queue, run_at=at(12))
    told = [message for _, message in wrong(work, "queue")]
    assert told == ["Jobs wait in queues that no live worker serves: a, b."]


def test_a_job_that_has_been_due_for_long_is_a_warning_or_by_a_limit_a_problem(
    work: Clockwork,
) -> None:
    late = make_job(run_at=at(11, 50))
    ((severity, message),) = wrong(work, "queue")
    assert (severity, message) == ("warning", f"A job has been due for 10 min: test.job {late.pk}.")
    assert wrong(work, "queue", max_age=700) == []
    assert [each for each, _ in wrong(work, "queue", max_age=500)] == ["problem"]
    pause("default")
    assert wrong(work, "queue", max_age=500) == []


def test_a_backlog_is_reckoned_by_the_pace_of_the_last_minutes(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(100):
        make_job(run_at=at(11, 59))
    assert wrong(work, "queue") == []  # nothing ended: nobody can tell
    make_job(State.COMPLETED, created_at=at(11, 58), finished_at=at(11, 59))
    assert wrong(work, "queue") == [("warning", "100 jobs due: at 0.2 a minute that takes 8 h.")]
    for _ in range(20):
        make_job(State.COMPLETED, created_at=at(11, 58), finished_at=at(11, 59))
    assert wrong(work, "queue") == []


def test_interrupted_jobs_wait_for_a_decision_until_there_is_one(work: Clockwork) -> None:
    for type in ("a", "b", "b"):
        make_job(State.INTERRUPTED, type=type)
    make_job(State.INTERRUPTED, namespace="other")
    assert wrong(work, "interrupted") == [
        ("warning", "3 interrupted jobs to be decided on: b (2), a (1).")
    ]
    Job.objects.update(state="completed")
    assert wrong(work, "interrupted") == []


def test_loop_records_that_cannot_have_a_job_are_told(work: Clockwork) -> None:
    record = Reminder.objects.create(cron="0 2 * * *", refuses="project")
    ((severity, message),) = wrong(work, "loops")
    assert severity == "warning"
    assert message.startswith(f"1 record of testapp.Reminder cannot have a job; {record.pk}: ")
    assert "no project" in message


def test_a_namespace_is_looked_at_alone(work: Clockwork) -> None:
    told = found(work, namespace="other")
    assert told["workers"][0].message == "No live worker serves the namespace."


def test_a_queue_that_nobody_serves_is_not_called_quick(work: Clockwork) -> None:
    register_handler("test.job", lambda: None)
    make_job()
    assert found(work)["queue"][0].message == "1 job queued, none due for long."
    Worker.objects.all().delete()
    assert found(work)["queue"][0].message == "1 job queued, and no worker to take any."
