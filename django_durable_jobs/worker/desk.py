"""The desk: the scheduler's own dealings with the database, one turn at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.db import DataError, Error, IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import claims, registry
from ..claims import ClaimRequest, ClaimResult
from ..conf import settings
from ..db import Outcome, own_connections, retrying, statements_for, transaction
from ..db.claiming import BATCH
from ..retry import repeats_interrupted
from ..states import InterruptionReason
from ..strictjson import describe_exception
from .context import JobContext
from .enrolment import Enrolment
from .gate import Gate
from .running import ERROR_MAX_CHARS, Run
from .scribe import Scribe

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Turn:
    """What one turn did: the runs it settled, those whose claim was lost, those it started.

    ``more`` says that another turn at once may find more; ``look_in`` after how many seconds
    something becomes due, None where no slot is free.
    """

    settled: list[Run] = field(default_factory=list)
    lost: list[Run] = field(default_factory=list)
    started: list[Run] = field(default_factory=list)
    more: bool = False
    look_in: float | None = None


class Desk:
    """Settles and claims, on a connection of the scheduler's thread."""

    def __init__(
        self, enrolment: Enrolment, gate: Gate, scribe: Scribe, *, make_id: Callable[[], UUID]
    ) -> None:
        self._enrolment = enrolment
        self._gate = gate
        self._scribe = scribe
        self._make_id = make_id
        self._using = enrolment.using
        self._known = frozenset[str](), frozenset[str]()
        self._known_at = -1
        self._own = own_connections(self._using, idle_limit=settings.LEASE)
        # Whether a commit's reply may have been lost: then the database may hold claims for this
        # worker that it knows nothing of.
        self.unsure = False

    def __enter__(self) -> Desk:
        self._own.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._own.__exit__(None, None, None)

    def turn(self, finished: Sequence[Run], *, free: int, held: Iterable[UUID]) -> Turn:
        """Settle what has finished, claim for ``free`` slots, in one transaction where possible."""
        try:
            return self._turn(finished, free=free, held=held)
        except BaseException:
            connections[self._using].close_if_unusable_or_obsolete()
            raise

    def _turn(self, finished: Sequence[Run], *, free: int, held: Iterable[UUID]) -> Turn:
        if self._enrolment.changed:
            self._enrolment.tell_types()
        if self.unsure:
            self._confirm(held)
            self.unsure = False
        turn = Turn()
        request = self._request(free) if free else None
        result = self._settle_and_claim(turn, finished, request)
        self._start(turn, result)
        if request is None:
            return turn
        self._gate.used(taking.job_id for taking in result.takings)
        turn.more = result.promoted >= BATCH
        try:
            if result.left_over:
                self._gate.ask(claims.peek(connections[self._using], request))
            if result.paused:
                turn.look_in = settings.MAX_SLEEP
            elif not turn.started and not turn.more:
                # A job that was approved and not claimed is asked about again.
                turn.look_in = min(self._look_in(), self._gate.expires_in())
        except Error as error:
            # What was settled and claimed is committed, and is not to be forgotten for this.
            logger.warning("look ahead failed error=%s", error)
            connections[self._using].close_if_unusable_or_obsolete()
            turn.look_in = settings.POLL_INTERVAL
        return turn

    def _settle_and_claim(
        self, turn: Turn, finished: Sequence[Run], request: ClaimRequest | None
    ) -> ClaimResult:
        result = ClaimResult()
        pending = [run for run in finished if run.outcome is not None and not run.settled]
        outcomes = [run.outcome for run in pending if run.outcome is not None]
        if not outcomes and request is None:
            kept: set[UUID] = set()
        else:
            try:
                with transaction(self._using) as connection:
                    kept = claims.settle(connection, outcomes)
                    if request is not None:
                        result = claims.claim(connection, request)
            except (DataError, IntegrityError) as error:
                # An outcome that the database refuses; anything else is the database's trouble.
                if not outcomes:
                    raise
                logger.warning("group settlement refused error=%s", error)
                kept = self._settle_apart(pending)
        for run in finished:
            done = run.settled or run.claimed.claim_id in kept
            (turn.settled if done else turn.lost).append(run)
        for run in turn.lost:
            logger.warning(
                "outcome refused, the claim is not held any more job=%s claim=%s",
                run.job.pk,
                run.claimed.claim_id,
            )
        return result

    def _settle_apart(self, pending: Sequence[Run]) -> set[UUID]:
        """Settle one by one; a job whose outcome the database refuses fails with its reason."""
        instead: dict[UUID, Outcome] = {}
        with transaction(self._using) as connection:
            done = claims.settle_apart(connection, [run.outcome for run in pending if run.outcome])
            for outcome, error in done.refused:
                instead[outcome.claim_id] = _refused(outcome, error)
            done.held |= claims.settle(connection, list(instead.values()))
        for run in pending:
            run.outcome = instead.get(run.claimed.claim_id, run.outcome)
        return done.held

    def _start(self, turn: Turn, result: ClaimResult) -> None:
        if not result.takings:
            return
        try:
            loaded = claims.load(connections[self._using], result.takings)
        except Error:
            # They are claimed: a session that the database ended meanwhile costs no job.
            connections[self._using].close_if_unusable_or_obsolete()
            loaded = claims.load(connections[self._using], result.takings)
        for claimed in loaded:
            context = JobContext(claimed, self._scribe, using=self._using)
            turn.started.append(Run(claimed, registry.get(claimed.job.type), context))

    def _request(self, free: int) -> ClaimRequest:
        types, gated = self._types()
        return ClaimRequest(
            namespace=self._enrolment.namespace,
            worker=self._enrolment.worker,
            slots=free,
            types=types,
            lease=settings.LEASE,
            queues=self._enrolment.queues,
            excluded=self._enrolment.excluded,
            gated=gated,
            approved=self._gate.approved() if gated else frozenset(),
            owner_cap=settings.OWNER_CONCURRENCY,
            uncapped=settings.UNCAPPED_OWNERS,
            global_cap=settings.GLOBAL_CONCURRENCY,
            repeats=_repeats,
            make_id=self._make_id,
        )

    def _types(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return all types known here, and those with a can_run; found anew after each change."""
        version = registry.version()
        if self._known_at != version:
            handlers = {type: registry.get(type) for type in registry.types()}
            gated = (type for type, handler in handlers.items() if handler and handler.can_run)
            self._known = frozenset(handlers), frozenset(gated)
            self._known_at = version
        return self._known

    def _look_in(self) -> float:
        """Return after how many seconds the next waiting job becomes claimable."""
        statements = statements_for(connections[self._using])
        moment = statements.next_claimable_at(self._enrolment.namespace, self._enrolment.queues)
        if moment is None:
            return settings.MAX_SLEEP
        seconds = (moment - statements.clock.now(statements.connection)).total_seconds()
        # One whose time has come and that the claim did not get to: somebody else holds its row.
        return min(seconds if seconds > 0 else settings.POLL_INTERVAL, settings.MAX_SLEEP)

    def _confirm(self, held: Iterable[UUID]) -> None:
        """Interrupt claims in this worker's name whose commit was never confirmed to it."""
        namespace = self._enrolment.namespace
        with transaction(self._using) as connection:
            # Behind a commit that may still be under way: it holds this lock.
            statements_for(connection).lock_namespace(namespace)
            outcomes = claims.unconfirmed(connection, namespace, self._enrolment.worker, held)
        for outcome in outcomes:
            logger.warning("claim unconfirmed job=%s claim=%s", outcome.job_id, outcome.claim_id)

    def sign_off(self, left: Iterable[Run]) -> list[Outcome]:
        """Write what becomes of the runs that are left, and leave the namespace.

        Returns what was written: the outcome of one that ended just now; one that has not begun
        is released, unless it begins at this very moment; else interrupted.
        """
        runs = sorted(left, key=lambda run: run.job.pk)
        try:
            return retrying(lambda: self._sign_off(runs))
        except Error as error:
            # A dropped session, perhaps; what these jobs came to is worth a second one.
            logger.warning("sign off failed, once more error=%s", error)
            connections[self._using].close()
            return self._sign_off(runs)

    def _sign_off(self, left: Iterable[Run]) -> list[Outcome]:
        with transaction(self._using) as connection:
            written = [outcome for run in left if (outcome := _last_written(connection, run))]
            self._enrolment.leave(connection)
        return written


def _last_written(connection: BaseDatabaseWrapper, run: Run) -> Outcome | None:
    """Write the first of a run's last outcomes that the database takes; return it."""
    for outcome in _last_outcomes(run):
        done = claims.settle_apart(connection, [outcome])
        for refused, error in done.refused:
            outcome = _refused(refused, error)
            done.held |= claims.settle(connection, [outcome])
        if done.held:
            return outcome
    return None


def _refused(outcome: Outcome, error: Exception) -> Outcome:
    """Return what becomes of a job whose outcome the database refuses: it failed, for that."""
    return Outcome(
        job_id=outcome.job_id,
        claim_id=outcome.claim_id,
        edge="fail",
        error=describe_exception(error, ERROR_MAX_CHARS),
        error_code="outcome-refused",
    )


def _last_outcomes(run: Run) -> list[Outcome]:
    """Return what may become of a run that its worker leaves: the first that is still true."""
    if run.settled:
        return []
    if run.outcome is not None:
        return [run.outcome]
    claim = (run.job.pk, run.claimed.claim_id)
    repeats = _repeats(run.job.type, run.claimed.attempt, run.job.max_attempts)
    interrupted = claims.interrupt(claim, InterruptionReason.SCHEDULER_SHUTDOWN, repeats=repeats)
    if run.claimed.started:
        return [interrupted]
    released = Outcome(job_id=claim[0], claim_id=claim[1], edge="release", unstarted=True)
    return [released, interrupted]


def _repeats(type: str, attempt: int, granted: int | None) -> bool:
    handler = registry.get(type)
    return handler is not None and repeats_interrupted(
        handler.policy, attempt, max_attempts=granted, default=settings.ON_INTERRUPT
    )
