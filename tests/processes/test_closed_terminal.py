"""A worker whose terminal is closed goes on with its work, and ends as any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from django_durable_jobs import enqueue
from django_durable_jobs.models import Worker
from tests import databases, ledger
from tests.factories import assert_queue_is_sound
from tests.processes.harness import QUICK, WorkerProcess, Workers, states, until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.once]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_worker_whose_output_nobody_reads_any_more_works_and_signs_off(
    workers: Workers, log_format: str
) -> None:
    env = databases.subprocess_environment() | {
        "DDJ_DURABLE_JOBS": json.dumps(QUICK),
        ledger.VARIABLE: str(workers.ledger),
    }
    command = [sys.executable, "-m", "django", "runscheduler", "--grace=20"]
    log = workers.folder / "stderr"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--log-format", log_format],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=databases.ROOT,
            preexec_fn=databases.die_with_parent(signal.SIGKILL),
        )
    worker = WorkerProcess(process, log)
    workers.all.append(worker)  # which ends it, whatever becomes of the test
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 100)
    process.stdout.close()

    brief = [enqueue("ledger.work") for _ in range(3)]
    until(lambda: states(*brief) == ["completed"] * 3, "the brief jobs")
    job = enqueue("ledger.work", {"seconds": 1.5})
    until(lambda: job.pk in workers.started(), "the start")
    worker.signal(signal.SIGTERM)
    worker.ended()
    assert states(job) == ["completed"], worker.output
    row = Worker.objects.get()
    assert (row.state, row.active) == ("stopped", 0)
    assert "Traceback" not in worker.output
    assert_queue_is_sound()
