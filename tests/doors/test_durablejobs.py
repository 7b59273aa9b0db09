"""`manage.py durablejobs`: its subcommands, what they print, and their exit codes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection

from django_durable_jobs.management.commands import durablejobs, runscheduler
from django_durable_jobs.management.subcommands.scope import span
from django_durable_jobs.models import Job, Worker
from django_durable_jobs.states import State
from django_durable_jobs.worker.identity import this_process
from tests import databases
from tests.factories import make_job, make_worker, now
from tests.processes.harness import Workers, until

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: str) -> tuple[int, str]:
    """Call the command; return its exit code and what it printed."""
    out = io.StringIO()
    try:
        call_command("durablejobs", *arguments, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def own_worker(**values: Any) -> Worker:
    here = this_process()
    return make_worker(
        **{"host": here.host, "pid_namespace": here.pid_namespace, "pid": here.pid} | values
    )


# Health


def test_health_is_0_and_a_sentence() -> None:
    make_worker(active=3)
    make_worker(state="draining", active=1)
    assert run("health") == (0, "Healthy: 2 live workers, 4 of 8 slots busy.\n")


def test_health_is_1_and_says_what_is_wrong_with_whom() -> None:
    assert run("health") == (1, "Unhealthy: No live worker serves the namespace.\n")
    make_worker()
    make_worker(host="web-2", pid=7, healthy=False, error="OperationalError: gone")
    code, text = run("health")
    assert code == 1
    assert text.splitlines() == [
        "Unhealthy: 1 of 2 live workers is in trouble with the database.",
        "  web-2:7 is in trouble: OperationalError: gone",
    ]


def test_health_as_json() -> None:
    worker = make_worker(namespace="other")
    code, text = run("health", "--json", "--namespace", "other", "--max-age", "5m")
    told = json.loads(text)
    assert code == 0
    assert (told["healthy"], told["problems"], told["namespace"]) == (True, [], "other")
    assert [each["id"] for each in told["workers"]] == [str(worker.pk)]
    make_job(namespace="other", run_at=now() - timedelta(minutes=6))
    code, text = run("health", "--json", "--namespace", "other", "--max-age", "5m")
    assert code == 1
    assert [problem["code"] for problem in json.loads(text)["problems"]] == ["job-late"]


def test_health_of_this_host_asks_about_its_own_workers() -> None:
    make_worker(healthy=False)
    code, text = run("health", "--this-host")
    assert (code, text) == (1, "Unhealthy: No live worker serves the namespace here.\n")
    own = own_worker()
    assert run("health", "--this-host")[0] == 0
    assert run("health", "--pid", str(own.pid))[0] == 0
    assert run("health", "--pid", str(own.pid + 1))[0] == 1
    Worker.objects.filter(pk=own.pk).update(heartbeat_at=now() - timedelta(minutes=1))
    code, text = run("health", "--this-host")
    assert code == 1
    assert "gave its last sign of life at" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--namespace", " "], "--namespace is blank"),
        (["--database", "nosuch"], "There is no database 'nosuch' in DATABASES."),
        (["--max-age", "soon"], "'soon' is no span of time"),
        (["--pid", "x"], "invalid int value"),
        (["--nosuch"], "unrecognized arguments: --nosuch"),
    ],
)
def test_wrong_usage_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError) as refused:
        run("health", *arguments)
    assert message in str(refused.value)


# Prune


def test_prune_deletes_by_the_setting_or_by_the_age_given() -> None:
    make_job(State.COMPLETED, finished_at=now() - timedelta(days=40))
    make_job(State.COMPLETED, finished_at=now() - timedelta(days=3))
    make_job(State.COMPLETED, finished_at=now() - timedelta(days=3), namespace="other")
    assert run("prune", "jobs") == (0, "Deleted 1 job.\n")
    assert run("prune", "jobs", "--older-than", "4d") == (0, "Deleted 0 jobs.\n")
    assert run("prune", "jobs", "--older-than", "2d") == (0, "Deleted 1 job.\n")
    assert Job.objects.get().namespace == "other"


def test_prune_says_so_where_all_is_kept(settings: Any) -> None:
    settings.DURABLE_JOBS = {"JOB_RETENTION": None}
    make_job(State.COMPLETED, finished_at=now() - timedelta(days=4_000))
    assert "give --older-than" in run("prune", "jobs")[1]
    assert run("prune", "jobs", "--older-than", "1d") == (0, "Deleted 1 job.\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7_200), ("30d", 2_592_000)],
)
def test_a_span_of_time(text: str, seconds: float) -> None:
    assert span(text) == seconds


# The command itself


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        env=databases.subprocess_environment(),
        cwd=databases.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_its_subcommands_are_told_and_others_refused() -> None:
    with pytest.raises(CommandError, match="invalid choice: 'nosuch'"):
        run("nosuch")
    assert durablejobs.SUBCOMMANDS["run"] is runscheduler.Command
    told = manage("durablejobs", "--help").stdout
    assert all(name in told for name in durablejobs.SUBCOMMANDS)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["health"], 1, "Unhealthy: No live worker serves the namespace."),
        (["--settings", "tests.settings", "health"], 1, "Unhealthy"),
        (["--pythonpath", "status", "-v", "1", "health"], 1, "Unhealthy"),
        (["--pythonpath=run", "--no-color", "health"], 1, "Unhealthy"),
        (["nosuch", "health"], 2, "invalid choice: 'nosuch'"),
        (["cancel", "--type", "a"], 2, "Nobody can be asked here"),
        (["resolve", "x"], 2, "required: --note"),
        (["requeue", "--state", "running"], 2, "invalid choice: 'running'"),
        (["doctor"], 1, "No live worker serves the namespace."),
        (["health", "--nosuch"], 2, "durablejobs health: error: unrecognized"),
        (["health", "--database", "nosuch"], 2, "There is no database 'nosuch'"),
        (["health", "--max-age", "soon"], 2, "is no span of time"),
        (["nosuch"], 2, "invalid choice: 'nosuch'"),
        ([], 2, "required: subcommand"),
        (["run", "--concurrency", "0"], 2, "--concurrency must be at least 1."),
    ],
)
def test_exit_codes_on_a_command_line(arguments: list[str], code: int, told: str) -> None:
    ended = manage("durablejobs", *arguments)
    text = ended.stdout + ended.stderr
    assert (ended.returncode, told in text, "Traceback" in text) == (code, True, False), text


NO_TABLES = "The database 'default' has no tables for jobs: run `manage.py migrate` first."


@pytest.mark.parametrize(
    "arguments",
    [
        *(["status"], ["health"], ["doctor"], ["prune"], ["pause", "s"], ["pause", "--namespace"]),
        *(["resume", "s"], ["fire", "s"], ["cancel", str(uuid.uuid4())], ["sync-loops"]),
        ["requeue", "--state", "failed", "--yes"],
    ],
    ids=" ".join,
)
def test_missing_tables_are_told_alike_by_every_subcommand(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker._meta, "db_table", "django_durable_jobs_nosuch")
    with connection.execute_wrapper(refuse_ours):
        try:
            told = run(*arguments)
        except CommandError as error:
            told = error.returncode, str(error)
    assert told[0] == 1
    assert NO_TABLES in told[1]


def refuse_ours(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    if "django_durable_jobs_" in sql and "information_schema" not in sql:
        raise ProgrammingError("no such table")
    return execute(sql, params, many, context)


def test_prune_says_nothing_of_checks() -> None:
    ended = manage("durablejobs", "prune")
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        0,
        "Deleted 0 jobs and 0 ticks.\n",
        "",
    )


@pytest.mark.parametrize("subcommand", ["status", "doctor"])
def test_a_reader_that_has_heard_enough_is_no_error(subcommand: str) -> None:
    """As `head` is: it closes the pipe before everything is said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "durablejobs", subcommand],
        env=databases.subprocess_environment(),
        cwd=databases.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (durablejobs.BROKEN_PIPE, b"")


def test_settings_that_are_wrong_are_told_in_a_sentence(tmp_path: Path) -> None:
    settings = "from tests.settings import *\nDURABLE_JOBS = {'NAMESPACE': ' '}\n"
    (tmp_path / "spoiled.py").write_text(settings)
    ended = manage("durablejobs", "status", "--settings", "spoiled", "--pythonpath", str(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr.startswith("The settings are not right: DURABLE_JOBS['NAMESPACE'] is blank")


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path) as started:
        yield started


@pytest.mark.once
def test_run_is_runscheduler_its_supervisor_too(workers: Workers) -> None:
    """A supervisor starts its own command line again, whichever of the two that is."""
    worker = workers.start("--processes", "2", command="durablejobs run")
    until(lambda: len(worker.children) == 2 or worker.is_over(), "two workers")
    assert not worker.is_over(), worker.output
    until(lambda: Worker.objects.filter(state="running").count() == 2, "their rows")
    assert manage("durablejobs", "health", "--this-host").returncode == 0
    for pid in worker.children:
        assert manage("durablejobs", "health", "--pid", str(pid)).returncode == 0
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0, worker.output
    assert manage("durablejobs", "health", "--this-host").returncode == 1
