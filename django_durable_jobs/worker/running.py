"""Running one job: from the claim to an outcome, decided once."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.db import Error, connections
from django.db import transaction as django_transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import registry
from ..audit import AuditEvent, Put, audited, send
from ..claims import Claimed, interrupt, pause_after
from ..conf import settings
from ..db import Outcome, current_clock, statements_for, transaction
from ..errors import DurableJobsError, InvalidJob
from ..models import Execution, Job
from ..registry import Handler
from ..retry import Discard, Retry, decide, repeats_interrupted
from ..states import HeldReason, InterruptionReason, State
from ..strictjson import describe_exception, dumps, format_traceback, normalise, storable_text
from .context import RECORD_MAX_BYTES, JobContext
from .forking import parent_only
from .frames import Frame
from .scribe import Scribe

logger = logging.getLogger(__name__)

ERROR_MAX_CHARS = 4_096
TRACEBACK_MAX_CHARS = 64 * 1_024
# For how long a job is put off that could not be started for trouble with the database.
RELEASED_FOR = 1.0


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class Run:
    """One claimed job on its way through a worker.

    ``handler`` is the one that was registered at the claim; ``settled`` means that the outcome
    is written already (an atomic handler's), ``outcome`` None that the claim was lost.
    """

    claimed: Claimed
    handler: Handler | None
    context: JobContext
    outcome: Outcome | None = None
    settled: bool = False
    # The watchdog's: where the handler is now, whether it was told to end there, and whether its
    # job was settled without it.
    frame: Frame | None = None
    interrupted: bool = False
    abandoned: bool = False
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def job(self) -> Job:
        return self.claimed.job

    @property
    def handler_returned(self) -> bool:
        """Whether the handler came to its end, and its outcome is not written yet."""
        done = self.outcome is not None and self.outcome.edge == "complete"
        return done and not self.settled

    @property
    def seconds(self) -> float:
        """How long the run has taken, or takes so far."""
        return (self.ended or time.monotonic()) - self.began


class Refused(Exception):
    """The job is given back: nothing was called."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Lost(Exception):
    """The claim is somebody else's, or nobody's: nothing more may be written."""


class Abandoned(BaseException):
    """The handler came back when its job had been settled without it: the run is not ours now."""


# Calls the handler: plainly, or under the eyes of the watchdog.
Within = Callable[[Callable[[], Any]], Any]


def plainly(function: Callable[[], Any]) -> Any:
    return function()


@dataclass(frozen=True, slots=True)
class Runner:
    """What it takes to run jobs: where to write, when to stop accepting."""

    using: str
    scribe: Scribe
    longest_pause: float
    draining: Callable[[], bool]
    # Who tells of what is sent in the threads that run jobs: None, whoever sends it.
    put: Put | None = None

    def prepare(self, run: Run) -> Arguments | None:
        """Do everything before the call; return its arguments, or None with the outcome set."""
        try:
            handler = self._still_the_same(run)
            self._stopped_before(run)
            self._ask_again(run, handler)
            # Foreign code has run meanwhile, for as long as it liked.
            self._still_the_same(run)
            self._stopped_before(run)
            self._start(run)
            return self._arguments(run, handler)
        except Refused as refused:
            run.outcome = refused.outcome
        except Lost:
            run.outcome = None
        except InvalidJob as error:
            run.outcome = self._failed(run, error, traceback=False, final=True)
        except Error:
            # The handler was not called, so the job may as well run another time.
            logger.exception("not started job=%s type=%s", run.job.pk, run.job.type)
            run.outcome = given_back(run)
        return None

    def call(self, run: Run, arguments: Arguments, within: Within = plainly) -> None:
        """Call an ordinary handler and set the outcome. Raises Abandoned."""
        assert run.handler is not None
        args, kwargs = arguments
        handler = partial(_called, run.handler.function, *args, **kwargs)
        try:
            if run.handler.atomic:
                self._call_atomic(run, partial(within, handler))
            else:
                self.finish(run, within(handler))
        except Abandoned:
            raise
        except Lost:
            run.outcome = None
        except BaseException as error:
            if run.settled:
                # Committed, the settlement with it: what raised is a hook of the handler's.
                logger.exception("on_commit hook failed job=%s", run.job.pk)
            else:
                self.fail(run, error)

    def finish(self, run: Run, result: Any) -> None:
        """Set the outcome of a handler that returned."""
        run.outcome = self._completed(run, result)

    def fail(self, run: Run, error: BaseException) -> None:
        """Set the outcome of a handler that raised, and tell the log (and so error trackers).

        One that was told to stop is interrupted, whatever it raised: nobody knows how far it came.
        """
        if run.context.should_stop:
            run.outcome = interrupted(
                run,
                error=describe_exception(error, ERROR_MAX_CHARS),
                traceback=format_traceback(error, TRACEBACK_MAX_CHARS),
            )
            return
        if not isinstance(error, (Discard, Retry)):
            logger.error(
                "job failed job=%s type=%s attempt=%s",
                run.job.pk,
                run.job.type,
                run.claimed.attempt,
                exc_info=error,
            )
        run.outcome = self._failed(run, error)

    def give_up(self, run: Run, error: BaseException) -> None:
        """See to it that there is an outcome, whatever went wrong around the handler."""
        if run.outcome is None:
            self.fail(run, error)
        else:
            logger.error("tidying up failed job=%s", run.job.pk, exc_info=error)

    # Before the call

    def _still_the_same(self, run: Run) -> Handler:
        if self.draining() and not run.claimed.started:
            raise Refused(self._outcome(run, "release"))
        handler = run.handler
        if handler is None or registry.get(run.job.type) is not handler:
            raise Refused(self._outcome(run, "release"))
        return handler

    def _stopped_before(self, run: Run) -> None:
        if run.context.stop_reason == InterruptionReason.STOP_REQUESTED:
            raise Refused(interrupted(run))

    def _ask_again(self, run: Run, handler: Handler) -> None:
        if run.claimed.started or handler.can_run is None or run.claimed.unreadable:
            return
        if ask(handler, run.job):
            return
        now = self.scribe.write(lambda connection: current_clock().now(connection))
        pause = pause_after(run.job, now, longest=self.longest_pause)
        held = {"delay": pause, "held_reason": HeldReason.NOT_ELIGIBLE.value}
        raise Refused(self._outcome(run, "release", **held))

    def _start(self, run: Run) -> None:
        if run.claimed.started:
            return
        if not self.scribe.write(lambda connection: _marked(connection, run)):
            raise Lost
        run.claimed.started = True
        if audited():
            send([AuditEvent("job.started", metadata=told(run))])

    def _arguments(self, run: Run, handler: Handler) -> Arguments:
        if run.claimed.unreadable:
            raise InvalidJob(run.claimed.unreadable)
        args, kwargs = handler.parameters.arguments(copy.deepcopy(run.job.payload))
        if handler.takes_context:
            args = (run.context, *args)
        return args, kwargs

    # The call

    def _call_atomic(self, run: Run, call: Callable[[], Any]) -> None:
        """Call the handler and settle in one transaction on its own connection, or not at all."""
        outcomes: list[Outcome] = []

        def committed() -> None:
            run.outcome, run.settled = outcomes[0], True

        # In the transaction of a test no hook will be called.
        nested = connections[self.using].in_atomic_block
        with transaction(self.using) as connection:
            if not nested:
                # Before any hook of the handler's, which may raise.
                connection.on_commit(lambda: committed() if outcomes else None)
            outcome = self._completed(run, call())
            if outcome.edge != "complete":
                django_transaction.set_rollback(True, using=self.using)
                run.outcome = outcome
                return
            if not statements_for(connection).settle(outcome):
                raise Lost
            outcomes.append(outcome)
        if nested:
            committed()

    # After the call

    def _completed(self, run: Run, result: Any) -> Outcome:
        if result is None:
            return self._outcome(run, "complete")
        try:
            text = dumps(normalise(result, "result", max_bytes=RECORD_MAX_BYTES))
        except InvalidJob as error:
            # The work is done and is not repeated; what it returned cannot be kept.
            return self._failed(run, error, final=True)
        return self._outcome(run, "complete", result=text)

    def _failed(
        self,
        run: Run,
        error: BaseException,
        *,
        traceback: bool = True,
        final: bool = False,
    ) -> Outcome:
        told = {
            "error": describe_exception(error, ERROR_MAX_CHARS),
            "error_code": error.code if isinstance(error, DurableJobsError) else "",
            "traceback": format_traceback(error, TRACEBACK_MAX_CHARS) if traceback else "",
        }
        if final or run.handler is None:
            if isinstance(error, InvalidJob):  # ours, and says it all
                told["error"] = storable_text(str(error), ERROR_MAX_CHARS)
            return self._outcome(run, "fail", **told)
        decision = decide(
            run.handler.policy,
            run.claimed.attempt,
            max_attempts=run.job.max_attempts,
            exception=error,
        )
        if decision.note:
            logger.warning("retry job=%s note=%s", run.job.pk, decision.note)
        told["error_code"] = decision.code or told["error_code"]
        if decision.retry_after is None:
            return self._outcome(run, "fail", **told)
        held = {"delay": decision.retry_after, "held_reason": HeldReason.RETRY.value}
        return self._outcome(run, "retry", **told, **held)

    @staticmethod
    def _outcome(run: Run, edge: str, **told: Any) -> Outcome:
        return Outcome(job_id=run.job.pk, claim_id=run.claimed.claim_id, edge=edge, **told)


def _marked(connection: BaseDatabaseWrapper, run: Run) -> bool:
    """Mark a run started; tell whether it is, be it since a try whose reply was lost."""
    job_id, claim_id = run.job.pk, run.claimed.claim_id
    if statements_for(connection).start(job_id, claim_id):
        return True
    claim = Execution.objects.using(connection.alias).filter(job_id=job_id, claim_id=claim_id)
    return claim.filter(state=State.RUNNING).exists()


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with parent_only():
        return function(*args, **kwargs)


def told(run: Run) -> dict[str, Any]:
    """Return the metadata of events of a run."""
    return {
        "job_id": str(run.job.pk),
        "type": run.job.type,
        "owner_id": run.job.owner_id,
        "claim_id": str(run.claimed.claim_id),
        "attempt": run.claimed.attempt,
    }


def given_back(run: Run) -> Outcome:
    """Return the outcome of a run whose handler was not called: another time, in a moment."""
    return Outcome(
        job_id=run.job.pk, claim_id=run.claimed.claim_id, edge="release", delay=RELEASED_FOR
    )


def interrupted(run: Run, *, error: str = "", traceback: str = "") -> Outcome:
    """Return the outcome of a run that was told to stop and did not return, for its reason.

    Past its time limit it may be run again where its handler declares so, never after an
    operator's stop.
    """
    reason = run.context.stop_reason or InterruptionReason.SCHEDULER_SHUTDOWN
    handler = run.handler
    repeats = (
        handler is not None
        and reason != InterruptionReason.STOP_REQUESTED
        and repeats_interrupted(
            handler.policy,
            run.claimed.attempt,
            max_attempts=run.job.max_attempts,
            default=settings.ON_INTERRUPT,
        )
    )
    outcome = interrupt((run.job.pk, run.claimed.claim_id), reason, repeats=repeats)
    return replace(outcome, error=error, traceback=traceback)


def ask(handler: Handler, job: Job) -> bool:
    """Ask the handler's can_run; anything but True, or an exception, means not now."""
    assert handler.can_run is not None
    can_run: Any = handler.can_run
    if handler.can_run_is_async:
        can_run = async_to_sync(can_run)
    try:
        with parent_only():
            answer = can_run(copy.deepcopy(job))
    except BaseException:  # a SystemExit too says no, and ends nothing of ours
        logger.exception("can_run failed job=%s type=%s", job.pk, job.type)
        return False
    return answer is True
