"""A worker killed between two stages of an occurrence: what is stored, and what happens next.

``POINTS`` is the table of docs/loops.md, and these tests are its proof.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_durable_jobs.loops import sync_loops
from django_durable_jobs.models import Execution, Job, QueueEntry
from tests.app.models import Note, Reminder
from tests.factories import assert_queue_is_sound
from tests.processes.forking import ForkedWorkers
from tests.processes.harness import attempts

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "loops.md"
GONE = "server_restarted_after_claim"
# No lease runs out, and no reconcile comes by after the first: what ended the job does it.
PATIENT = {"LEASE": 60, "HEARTBEAT": 5, "LOOP_SYNC_INTERVAL": 600}
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Point:
    """What is stored when a worker was killed behind a stage."""

    stage: str  # as docs/loops.md numbers and names it
    metadata: bool
    receipt: bool
    triggered: bool
    advanced: bool

    def row(self) -> str:
        """Return the row of the documentation's table."""
        stored = ["stored" if each else "none" for each in (self.metadata, self.receipt)]
        cells = [
            f"after {self.stage}",
            *stored,
            "done" if self.triggered else "not begun",
            "at its next time" if self.advanced else "at this time",
            "at its next time",
        ]
        return "| " + " | ".join(cells) + " |"


POINTS = [
    Point("checks", False, False, False, False),
    Point("metadata", True, False, False, False),
    Point("prepare", True, False, False, False),
    Point("receipt", True, True, False, False),
    Point("trigger", True, True, True, False),
    Point("advance", True, True, True, True),
]
# How the record recurs, and how it goes on after this time.
KINDS: dict[str, tuple[dict[str, Any], timedelta | None]] = {
    "interval": ({"every": HOUR}, HOUR),
    "single run": ({}, None),
    "trigger raises": ({"every": HOUR, "refuses": "trigger"}, HOUR),
}


@pytest.fixture
def workers(transactional_db: None, tmp_path: Path) -> Iterator[ForkedWorkers]:
    with ForkedWorkers(tmp_path) as workers:
        yield workers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.stage)
def test_a_worker_that_is_killed_between_two_stages(
    workers: ForkedWorkers, point: Point, kind: str
) -> None:
    values, step = KINDS[kind]
    record = Reminder.objects.create(text="tea", **values)
    record.run_now()
    job = QueueEntry.objects.get().job
    after = None if step is None else job.run_at + step

    victim = workers.start(environment={"DDJ_KILL": f"loop:{point.stage}"}, **PATIENT)
    assert victim.ended() == -signal.SIGKILL, victim.output
    execution = Execution.objects.get(job=job)
    assert (Job.objects.get(pk=job.pk).state, execution.state) == ("running", "running")
    assert (execution.metadata is not None) == point.metadata
    assert (execution.receipt is not None) == point.receipt
    record.refresh_from_db()
    assert record.next_run_at == (after if point.advanced else job.run_at)
    told = [f"tea at {job.run_at.isoformat()}"] * point.triggered
    assert notes() == told

    second = workers.start("--burst", **PATIENT)
    assert second.ended() == 0, second.output
    assert attempts(job) == [(1, "interrupted", GONE)]
    record.refresh_from_db()
    assert (record.next_run_at, record.last_occurrence_at) == (after, job.run_at)
    waiting = list(QueueEntry.objects.values_list("job__target_id", "run_at"))
    assert waiting == ([] if after is None else [(str(record.pk), after)])
    assert notes() == told
    assert sync_loops() == 0
    assert_queue_is_sound()

    # It is not stuck.
    record.refuses = ""
    record.save()
    record.run_now()
    third = workers.start("--burst", **PATIENT)
    assert third.ended() == 0, third.output
    assert len(set(notes())) == len(notes()) == len(told) + 1
    assert workers.trouble() == []


def notes() -> list[str]:
    return list(Note.objects.order_by("pk").values_list("text", flat=True))


def test_the_documentation_has_this_table_and_no_other_row() -> None:
    section = PAGE.read_text().split("## Killed between two stages", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (?!killed|---).*$", section, re.MULTILINE)
    assert rows == [point.row() for point in POINTS]
