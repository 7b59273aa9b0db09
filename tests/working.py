"""What workers inside the test's process do, seen from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest

from django_durable_jobs import enqueue, register_handler, strictjson
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.states import ACTIVE, SETTLED
from django_durable_jobs.worker import running
from django_durable_jobs.worker.desk import Turn
from django_durable_jobs.worker.running import Run
from tests.processes.harness import until


class Witness:
    """An observer that keeps every turn, every trouble and every stuck run it is told of."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.troubles: list[str] = []
        self.runs_stuck: list[Run] = []

    def turned(self, turn: Turn) -> None:
        self.turns.append(turn)

    def troubled(self, error: str) -> None:
        self.troubles.append(error)

    def stuck(self, run: Run, stuck: int, most: int) -> None:
        self.runs_stuck.append(run)


def ended(*jobs: Job) -> list[Job]:
    """Return the jobs once all of them are settled."""
    ids = [job.pk for job in jobs]
    until(
        lambda: Job.objects.filter(pk__in=ids, state__in=SETTLED).count() == len(ids),
        f"the ends of {ids}",
    )
    found = Job.objects.in_bulk(ids)
    return [found[id] for id in ids]


def run(function: Callable[..., Any], payload: Any = None, **options: Any) -> Execution:
    """Register the function, run one job of it, and return its last execution."""
    register_handler("it", function, **options)
    (job,) = ended(enqueue("it", payload))
    return job.latest_execution  # type: ignore[no-any-return]


def held() -> int:
    """Return how many executions have not ended."""
    return Execution.objects.filter(state__in=ACTIVE).count()


def fail_once(monkeypatch: pytest.MonkeyPatch, where: str, error: Exception) -> list[Exception]:
    """Have the next call of what stands there raise; the list is empty once it has."""
    function, left = resolve_name(where), [error]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return function(*args, **kwargs)

    monkeypatch.setattr(where, call)
    return left


def not_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the result "bad" written as what no database takes for JSON."""
    dumps = strictjson.dumps
    monkeypatch.setattr(running, "dumps", lambda value: "{" if value == "bad" else dumps(value))


def comes_about(condition: Callable[[], object], *, seconds: float) -> bool:
    """Tell whether the condition comes to hold within so many seconds, for what must not."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
