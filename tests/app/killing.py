"""Jobs whose worker is killed at a chosen point, and what kills it there.

Only processes that are forked for such a test import this (see tests/processes/forking.py). A
point is a deed and a moment: ``take:after`` is right after the commit of the transaction in which
a job was claimed, ``handler:during`` is in the middle of the handler, ``loop:receipt`` is between
the receipt of a loop record's occurrence and the next stage.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django_durable_jobs import job
from django_durable_jobs.db import MySQLStatements, PostgreSQLStatements, Statements
from django_durable_jobs.loops import dispatching
from django_durable_jobs.states import State
from django_durable_jobs.worker.context import JobContext
from django_durable_jobs.worker.running import Runner
from tests import ledger
from tests.app.jobs import recorded
from tests.app.models import Note, Reminder

VARIABLE = "DDJ_KILL"
# The statements that do the deed; the edges of outcomes are deeds by themselves.
STATEMENTS = ("insert_jobs", "take", "start")
EDGES = ("complete", "retry", "release", "interrupt")


# The jobs


def plain(context: JobContext, seconds: float = 0.0) -> None:
    with recorded(context):
        time.sleep(seconds)


def in_a_transaction(context: JobContext) -> None:
    with recorded(context):
        Note.objects.create(text=str(context.job.pk))


def fails_at_first(context: JobContext) -> None:
    with recorded(context):
        if context.attempt == 1:
            raise ValueError("the first attempt fails")


def thinks(context: JobContext, gate: str) -> None:
    with recorded(context):
        pass


def after_the_claim_wait(job: Any) -> bool:
    """Say yes; of a claimed job only once the file that its payload names is there."""
    while job.state == State.CLAIMED and not Path(job.payload["gate"]).exists():
        time.sleep(0.02)
    return True


# Not 0: the very turn that settles the failure would claim the job again.
_RETRIED: dict[str, Any] = {"max_attempts": 2, "backoff": 0.3}
_REPEATABLE: dict[str, Any] = {"max_attempts": 2, "on_interrupt": "requeue"}
for _name, _function, _options in (
    ("plain", plain, {}),
    ("gated", plain, {"can_run": lambda job: True}),
    ("atomic", in_a_transaction, {"atomic": True}),
    ("retried", fails_at_first, _RETRIED),
    ("thinks", thinks, {"can_run": after_the_claim_wait}),
):
    job(f"killed.{_name}", takes_context=True, **_options)(_function)
    job(f"killed.{_name}.repeatable", takes_context=True, **(_options | _REPEATABLE))(_function)


# What kills


def install(point: str) -> None:
    """Have this process killed as soon as it comes to ``point``; "" kills it nowhere."""
    if not point:
        return
    deed, moment = point.split(":")
    if deed == "loop":
        _die_behind_stage(moment)
        return
    if deed == "handler":
        (_die_in_handler if moment == "during" else _die_behind_handler)()
        return
    assert deed in STATEMENTS + EDGES, point
    name = deed if deed in STATEMENTS else "settle"
    for statements in (Statements, PostgreSQLStatements, MySQLStatements):
        _die_at_commit(statements, name, moment, edge=deed if deed in EDGES else None)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_handler() -> None:
    write = ledger.write

    def write_and_die(event: str, *args: Any) -> None:
        write(event, *args)
        _die()

    ledger.write = write_and_die


def _die_behind_handler() -> None:
    Runner._completed = _die  # type: ignore[method-assign,assignment]


def _die_behind_stage(stage: str) -> None:
    """Die when the stage of an occurrence is over, and the next one has not begun."""
    if stage in ("trigger", "advance"):
        owner, name = {"trigger": (Reminder, "trigger"), "advance": (dispatching, "_go_on")}[stage]
        method = getattr(owner, name)

        def last(*args: Any) -> None:
            try:
                method(*args)
            finally:
                _die()

        setattr(owner, name, last)
        return
    nexts: dict[str, tuple[type[Any], str]] = {
        "checks": (JobContext, "record_metadata"),
        "metadata": (Reminder, "prepare"),
        "prepare": (JobContext, "record_receipt"),
        "receipt": (Reminder, "trigger"),
    }
    setattr(*nexts[stage], _die)


def _die_at_commit(statements: type[Statements], name: str, moment: str, edge: str | None) -> None:
    """Have the transaction in which the method did its deed be the last of this process."""
    method: Callable[..., Any] = getattr(statements, name)

    @functools.wraps(method)
    def did(self: Statements, *args: Any, **options: Any) -> Any:
        result = method(self, *args, **options)
        if result and (edge is None or args[0].edge == edge):
            connection: Any = self.connection
            commit = connection._commit

            def last_commit() -> None:
                if moment == "after":
                    commit()
                _die()

            connection._commit = last_commit
        return result

    setattr(statements, name, did)
