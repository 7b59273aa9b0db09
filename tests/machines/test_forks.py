"""Handlers that fork: the child runs nothing of the worker's, and ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_durable_jobs import Scheduler, enqueue, enqueue_many, register_handler
from tests.working import ended

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("keys"),
    # Python warns of what is done here, and a handler may do it all the same.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

Make = Callable[..., Scheduler]


def raises() -> None:
    raise RuntimeError("in the child")


def leaves() -> None:
    raise SystemExit(7)


def forks(in_child: Callable[[], Any]) -> int:
    """Fork, and return the child's exit code; the child does ``in_child``."""
    pid = os.fork()
    if not pid:
        in_child()
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("in_child", "code"),
    [(lambda: None, 0), (raises, 1), (leaves, 7)],
    ids=["returns", "raises", "leaves"],
)
@pytest.mark.parametrize("way", ["thread", "atomic", "async"])
def test_a_forked_child_takes_no_job_and_ends_with_its_handler(
    make: Make, tmp_path: Path, way: str, in_child: Callable[[], Any], code: int
) -> None:
    ledger = tmp_path / "ledger"

    def note(n: int) -> None:
        with ledger.open("a") as lines:
            lines.write(f"{n}\n")

    async def later() -> int:
        return forks(in_child)

    if way == "async":
        register_handler("forks", later)
    else:
        register_handler("forks", lambda: forks(in_child), atomic=way == "atomic")
    register_handler("note", note)
    scheduler = make(concurrency=4)
    jobs = [enqueue("forks") for _ in range(4)]
    notes = enqueue_many([{"type": "note", "payload": {"n": n}} for n in range(40)])
    scheduler.start()
    assert [job.latest_execution.result for job in ended(*jobs)] == [code] * 4
    assert {job.state for job in ended(*notes)} == {"completed"}
    assert sorted(map(int, ledger.read_text().split())) == list(range(40))
