"""A worker killed at each point of a job's life: what is stored, and what happens next.

``POINTS`` is the table of docs/reliability.md, and these tests are its proof: each cell of its
last three columns is one of them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_durable_jobs import enqueue
from django_durable_jobs.db import current_clock
from django_durable_jobs.ids import uuid7
from django_durable_jobs.models import Job, QueueEntry, Worker
from django_durable_jobs.states import InterruptionReason
from tests.app.models import Note
from tests.factories import assert_queue_is_sound
from tests.processes.forking import ForkedWorkers
from tests.processes.harness import attempts, until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
GONE = "server_restarted_after_claim"
# No lease runs out: that the process is gone is proof enough.
PATIENT = {"LEASE": 60, "HEARTBEAT": 5}

NOTHING, INTERRUPTED = "nothing", "is `interrupted`"
RUNS, RUNS_AGAIN = "runs, attempt 1", "runs, attempt 2"
NOT_CALLED, CALLED, ENDED = "not called", "called", "ended"
# How a row is run, by column of the table: with settings, and with a type that may run again.
COLUMNS: dict[str, tuple[dict[str, str], str]] = {
    "by default": ({}, ""),
    "requeue unstarted": ({"RECOVER_UNSTARTED": "requeue"}, ""),
    "on_interrupt": ({}, ".repeatable"),
}


@dataclass(frozen=True)
class Point:
    """A point, what is stored when a worker was killed there, and what comes of it.

    ``then`` is by column, where the column makes a difference.
    """

    name: str
    kill: str  # see tests/app/killing.py
    job: str  # its stored state, "" for none
    execution: str  # the same
    handler: str
    then: tuple[str, str | None, str | None]
    kind: str = "plain"
    payload: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # of a worker that is told to stop

    def row(self) -> str:
        """Return the row of the documentation's table."""
        stored = [f"`{state}`" if state else "none" for state in (self.job, self.execution)]
        cells = [self.name, *stored, self.handler, *(cell or "" for cell in self.then)]
        return "| " + " | ".join(cells) + " |"


HELD = (INTERRUPTED, None, RUNS_AGAIN)
UNSTARTED = (INTERRUPTED, RUNS, RUNS_AGAIN)
SAFE = (RUNS, None, None)
OVER = (NOTHING, None, None)

POINTS = [
    Point("before the commit of the enqueueing", "insert_jobs:before", "", "", NOT_CALLED, OVER),
    Point(
        "after the commit of the enqueueing", "insert_jobs:after", "queued", "", NOT_CALLED, SAFE
    ),
    Point("before the claim's commit", "take:before", "queued", "", NOT_CALLED, SAFE),
    Point(
        "after the claim's commit",
        "take:after",
        "running",
        "running",
        NOT_CALLED,
        (INTERRUPTED, INTERRUPTED, RUNS_AGAIN),
    ),
    Point(
        "after the claim's commit, where a `can_run` is still to be asked",
        "take:after",
        "claimed",
        "claimed",
        NOT_CALLED,
        UNSTARTED,
        kind="gated",
    ),
    Point(
        "before the commit of the start that follows a `can_run`",
        "start:before",
        "claimed",
        "claimed",
        NOT_CALLED,
        UNSTARTED,
        kind="gated",
    ),
    Point(
        "after the commit of the start that follows a `can_run`",
        "start:after",
        "running",
        "running",
        NOT_CALLED,
        (INTERRUPTED, INTERRUPTED, RUNS_AGAIN),
        kind="gated",
    ),
    Point("while the handler runs", "handler:during", "running", "running", CALLED, HELD),
    Point("after the handler", "handler:after", "running", "running", ENDED, HELD),
    Point("before the settlement's commit", "complete:before", "running", "running", ENDED, HELD),
    Point(
        "after the settlement's commit",
        "complete:after",
        "completed",
        "completed",
        ENDED,
        (NOTHING, None, NOTHING),
    ),
    Point(
        "before the commit of an `atomic=True` handler",
        "complete:before",
        "running",
        "running",
        ENDED,
        HELD,
        kind="atomic",
    ),
    Point(
        "after the commit of an `atomic=True` handler",
        "complete:after",
        "completed",
        "completed",
        ENDED,
        (NOTHING, None, NOTHING),
        kind="atomic",
    ),
    Point(
        "before the commit of a failure that is to be retried",
        "retry:before",
        "running",
        "running",
        ENDED,
        HELD,
        kind="retried",
    ),
    Point(
        "after the commit of a failure that is to be retried",
        "retry:after",
        "queued",
        "failed",
        ENDED,
        (RUNS_AGAIN, None, None),
        kind="retried",
    ),
    Point(
        "before the commit of a release in the grace of a stop",
        "release:before",
        "claimed",
        "claimed",
        NOT_CALLED,
        UNSTARTED,
        kind="thinks",
        arguments=("--grace=20",),
    ),
    Point(
        "after the commit of a release in the grace of a stop",
        "release:after",
        "queued",
        "released",
        NOT_CALLED,
        SAFE,
        kind="thinks",
        arguments=("--grace=20",),
    ),
    Point(
        "before the commit of a release at the end of the grace",
        "release:before",
        "claimed",
        "claimed",
        NOT_CALLED,
        UNSTARTED,
        kind="thinks",
        arguments=("--grace=0",),
    ),
    Point(
        "after the commit of a release at the end of the grace",
        "release:after",
        "queued",
        "released",
        NOT_CALLED,
        SAFE,
        kind="thinks",
        arguments=("--grace=0",),
    ),
    Point(
        "before the commit of an interruption at the end of the grace",
        "interrupt:before",
        "running",
        "running",
        CALLED,
        (INTERRUPTED, None, None),
        payload={"seconds": 600},
        arguments=("--grace=0",),
    ),
    Point(
        "after the commit of an interruption at the end of the grace",
        "interrupt:after",
        "interrupted",
        "interrupted",
        CALLED,
        (NOTHING, None, None),
        payload={"seconds": 600},
        arguments=("--grace=0",),
    ),
]
CASES = [
    pytest.param(point, column, then, id=f"{point.name}, {column}")
    for point in POINTS
    for column, then in zip(COLUMNS, point.then, strict=True)
    if then is not None
]
REASONS = {"interrupted": "scheduler_shutdown"}  # of an execution that its own worker ended


@pytest.fixture
def workers(transactional_db: None, tmp_path: Path) -> Iterator[ForkedWorkers]:
    with ForkedWorkers(tmp_path) as workers:
        yield workers


@pytest.mark.parametrize(("point", "column", "then"), CASES)
def test_a_worker_that_is_killed(
    workers: ForkedWorkers, point: Point, column: str, then: str
) -> None:
    settings, suffix = COLUMNS[column]
    gate = workers.folder / "gate"
    job = Job(pk=uuid7())
    fields = {
        "type": f"killed.{point.kind}{suffix}",
        "payload": {"gate": str(gate)} if point.kind == "thinks" else point.payload,
    }
    kill(workers, point, {"id": str(job.pk), **fields}, PATIENT | settings, gate)

    stored = [(1, point.execution, REASONS.get(point.execution, ""))] if point.execution else []
    assert found(workers, job) == (point.job, stored, point.handler)
    assert QueueEntry.objects.filter(job_id=job.pk).exists() == (point.job == "queued")
    assert_notes(point, job)

    gate.touch()
    until(lambda: not waits(job), "the time of its retry")
    second = workers.start("--burst", **(PATIENT | settings))
    assert second.ended() == 0, second.output
    assert found(workers, job) == what_comes(point, stored, then)
    assert_notes(point, job)
    assert_queue_is_sound()
    calls = (point.handler != NOT_CALLED) + then.startswith("runs")
    assert workers.started() == [job.pk] * calls
    assert calls <= 1 or suffix or point.kind == "retried"
    if point.kind != "retried":  # whose log tells of the failure
        assert workers.trouble() == []


def kill(
    workers: ForkedWorkers,
    point: Point,
    fields: dict[str, Any],
    settings: dict[str, Any],
    gate: Path,
) -> None:
    """Have a process killed at the point, with the job in hand that ``fields`` describe."""
    environment = {"DDJ_KILL": point.kill}
    if point.kill.startswith("insert_jobs"):
        victim = workers.enqueue(environment, **fields)
    else:
        job = enqueue(**fields)
        victim = workers.start(*point.arguments, environment=environment, **settings)
        if point.arguments:
            begun = "claimed" if point.kind == "thinks" else "running"
            until(lambda: Job.objects.get(pk=job.pk).state == begun, f"the job to be {begun}")
            until(lambda: workers.started() or begun == "claimed", "the handler")
            victim.signal(signal.SIGTERM)
            until(lambda: victim.events("stopping"), "what it waits for")
            if "--grace=20" in point.arguments:
                gate.touch()
    assert victim.ended() == -signal.SIGKILL, victim.output


def found(workers: ForkedWorkers, job: Job) -> tuple[str, list[tuple[int, str, str]], str]:
    """Return what is there now: the job's state, its executions, how far its handler came last."""
    state = "".join(Job.objects.filter(pk=job.pk).values_list("state", flat=True))
    lines = workers.lines()
    last = {"start": CALLED, "end": ENDED}[lines[-1].event] if lines else NOT_CALLED
    return state, attempts(job), last


def waits(job: Job) -> bool:
    """Tell whether the job is queued and not due yet."""
    later = Job.objects.filter(claimable_at__gt=current_clock().now(connection))
    return later.filter(pk=job.pk, state="queued").exists()


def what_comes(
    point: Point, stored: list[tuple[int, str, str]], then: str
) -> tuple[str, list[tuple[int, str, str]], str]:
    """Return what must be there after another worker has done what there was to do."""
    if then == NOTHING:
        return point.job, stored, point.handler
    if then == INTERRUPTED:
        return "interrupted", [(1, "interrupted", GONE)], point.handler
    attempt = 2 if then == RUNS_AGAIN else 1
    before = stored
    if point.execution in ("claimed", "running"):
        before = [(1, "interrupted", GONE)] if attempt == 2 else [(1, "released", "")]
    return "completed", [*before, (attempt, "completed", "")], ENDED


def assert_notes(point: Point, job: Job) -> None:
    """See that what was to be written with a transaction of the project's is there, or not."""
    notes = Note.objects.filter(text=str(job.pk)).count()
    if point.kind == "atomic":
        assert notes == Job.objects.filter(pk=job.pk, state="completed").count()
    if point.kill.startswith("insert_jobs"):
        assert notes == Job.objects.filter(pk=job.pk).count()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_that_is_killed_while_it_buries_another_leaves_it_to_the_next(
    workers: ForkedWorkers, moment: str
) -> None:
    jobs = [enqueue("killed.plain", owner_id=f"owner-{number}") for number in range(2)]
    for point in ("handler:during", f"interrupt:{moment}"):
        victim = workers.start("--concurrency=1", environment={"DDJ_KILL": point}, **PATIENT)
        assert victim.ended() == -signal.SIGKILL, victim.output
    third = workers.start("--burst", **PATIENT)
    assert third.ended() == 0, third.output
    assert attempts(jobs[0]) == [(1, "interrupted", GONE)]
    assert attempts(jobs[1]) == [(1, "completed", "")]
    assert workers.started() == [job.pk for job in jobs]
    assert list(Worker.objects.order_by("id").values_list("state", flat=True)) == [
        "lost",
        "lost",
        "stopped",
    ]
    assert workers.trouble() == []
    assert_queue_is_sound()


def test_the_documentation_has_this_table_and_no_other_row() -> None:
    section = PAGE.read_text().split("## Killed at any point", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (?!killed|---).*$", section, re.MULTILINE)
    assert rows == [point.row() for point in POINTS]


def test_the_documentation_has_each_reason_of_an_interruption_and_no_other() -> None:
    section = PAGE.read_text().split("## Interruptions", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == InterruptionReason.values
