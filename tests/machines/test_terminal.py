"""The terminal: what a person sees, once."""

from __future__ import annotations

import io
import json
import logging
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from django_durable_jobs.db import Outcome
from django_durable_jobs.worker import terminal
from django_durable_jobs.worker.desk import Turn
from django_durable_jobs.worker.terminal import Terminal

ERROR = "OperationalError: the server is gone"


@pytest.mark.parametrize(
    ("has_log", "json_lines", "told"),
    [(True, False, True), (False, False, False), (False, True, True)],
    ids=["a log of its own", "Python writes the log's lines here", "lines for machines"],
)
def test_trouble_is_told_where_the_log_does_not_tell_it_in_the_same_place(
    monkeypatch: pytest.MonkeyPatch, has_log: bool, json_lines: bool, told: bool
) -> None:
    logger = logging.Logger("django_durable_jobs.worker.terminal")
    if has_log:
        logger.addHandler(logging.NullHandler())
    monkeypatch.setattr(terminal, "logger", logger)
    out = io.StringIO()
    Terminal(out, json_lines=json_lines).troubled(ERROR)
    assert (ERROR in out.getvalue()) is told


def a_run(outcome: str = "complete") -> Any:
    job = SimpleNamespace(pk=uuid.uuid4(), type="invoice.send", owner_id="acme")
    return SimpleNamespace(
        job=job,
        claimed=SimpleNamespace(attempt=1),
        outcome=Outcome(job_id=job.pk, claim_id=uuid.uuid4(), edge=outcome),
        seconds=0.012,
    )


def told(what: Any, **options: Any) -> str:
    """Return what a terminal writes when ``what`` is done with it."""
    out = io.StringIO()
    what(Terminal(out, **options))
    return out.getvalue()


def test_a_job_is_told_of_by_the_id_that_the_admin_and_every_call_find_it_by() -> None:
    run = a_run()
    line = told(lambda terminal: terminal.turned(Turn(settled=[run])))
    assert f"completed     12 ms  invoice.send {run.job.pk}  owner acme" in line


def test_what_a_stop_waits_for_has_a_line_each_and_of_many_the_first_five() -> None:
    runs = [a_run() for _ in range(7)]
    text = told(lambda terminal: terminal.waiting(runs, 25), process=3)
    first, *jobs, rest = text.splitlines()
    assert first == "[3] Stopping: waiting up to 25 s for 7 running jobs."
    assert jobs == [f"[3]      12 ms  invoice.send {run.job.pk}" for run in runs[:5]]
    assert rest.split() == ["[3]", "and", "2", "more"]


@pytest.mark.parametrize(
    ("left", "requeued", "words"),
    [
        (0, 0, ""),
        (
            1,
            0,
            "Interrupted 1 running job: it stays interrupted until somebody requeues or resolves"
            " it.\n",
        ),
        (
            2,
            0,
            "Interrupted 2 running jobs: they stay interrupted until somebody requeues or resolves"
            " them.\n",
        ),
        (0, 1, "Interrupted 1 running job: it goes back to the queue.\n"),
        (0, 2, "Interrupted 2 running jobs: they go back to the queue.\n"),
        (
            1,
            2,
            "Interrupted 3 running jobs: 2 go back to the queue, 1 stays interrupted until somebody"
            " requeues or resolves it.\n",
        ),
    ],
)
def test_what_becomes_of_interrupted_jobs_is_told_in_a_sentence(
    left: int, requeued: int, words: str
) -> None:
    assert told(lambda terminal: terminal.interrupted(left, requeued)) == words


def test_a_terminal_that_is_to_be_silent_is() -> None:
    def everything(terminal: Terminal) -> None:
        terminal.say("start", "Worker")
        terminal.turned(Turn(settled=[a_run("fail")]))
        terminal.waiting([a_run()], 25)
        terminal.interrupted(1, 1)
        terminal.troubled(ERROR)

    for json_lines in (True, False):
        assert told(everything, verbosity=0, json_lines=json_lines) == ""
    for line in told(everything, json_lines=True).splitlines():
        assert json.loads(line)["event"]
