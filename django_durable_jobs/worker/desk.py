"""The desk: the scheduler's own dealings with the database, one turn at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID

from django.db import DataError, Error, IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import claims, registry
from ..claims import ClaimRequest, ClaimResult
from ..conf import settings
from ..db import Outcome, Taking, own_connections, retrying, statements_for, transaction
from ..db.claiming import BATCH
from ..retry import repeats_interrupted
from ..states import EDGES, ExecutionState
from ..strictjson import describe_exception
from .context import JobContext
from .enrolment import Enrolment
from .gate import Gate
from .running import ERROR_MAX_CHARS, Run, interrupted
from .scribe import Scribe
from .trouble import one_line

logger = logging.getLogger(__name__)

# For how long a worker that leaves tries to say so, and how long it waits in between, in seconds.
SIGN_OFF, SIGN_OFF_PAUSE = 3.0, 1.0


@dataclass(slots=True)
class Turn:
    """What one turn did: the runs it settled, those whose claim was lost, those it started.

    ``more`` says that another turn at once may find more, ``left`` how many slots are free where
    none can be found now; ``paused`` that the namespace is; ``look_in`` after how many seconds
    something becomes due, None where no slot is free.
    """

    settled: list[Run] = field(default_factory=list)
    lost: list[Run] = field(default_factory=list)
    started: list[Run] = field(default_factory=list)
    more: bool = False
    left: int = 0
    paused: bool = False
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
        self._own = own_connections(self._using, lease=settings.LEASE)
        # Whether a commit's reply may have been lost: then the database may hold claims for this
        # worker that it knows nothing of.
        self.unsure = False
        # Claimed, and not read yet, because the connection broke in between.
        self.unread: tuple[Taking, ...] = ()

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
        turn = Turn()
        if self.unsure or self.unread:
            self._recover(turn, finished, held)
            if turn.started:
                turn.more = True
                return turn
            finished = ()
        request = self._request(free) if free else None
        result = self._settle_and_claim(turn, finished, request)
        self._read(turn)
        if request is None:
            return turn
        self._gate.used(taking.job_id for taking in result.takings)
        # With a slot left free there was nothing more to be had.
        turn.left = free - len(result.takings)
        turn.more = result.promoted >= BATCH or not turn.left
        turn.paused = result.paused
        if result.left_over:
            with self._forgiving():
                self._gate.ask(claims.peek(connections[self._using], request))
        return turn

    def look_ahead(self, turn: Turn) -> None:
        """Find out when to look again, after a turn that left slots free."""
        if turn.paused:
            turn.look_in = settings.MAX_SLEEP
        elif turn.left and not turn.more:
            turn.look_in = settings.POLL_INTERVAL
            with self._forgiving():
                # A job that was approved and not claimed is asked about again.
                turn.look_in = min(self._look_in(), self._gate.expires_in())

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Let a look fail: what the turn settled and claimed is not to be forgotten for it."""
        try:
            yield
        except Error as error:
            logger.warning("look ahead failed error=%s", one_line(error))
            connections[self._using].close_if_unusable_or_obsolete()

    def _recover(self, turn: Turn, finished: Sequence[Run], held: Iterable[UUID]) -> None:
        """Come to terms with the database after trouble: on what has ended, and who holds what."""
        # Outcomes first: nobody is likely to hold their rows, as somebody may the namespace's.
        self._settle_and_claim(turn, finished, None)
        self._confirm({*held, *(taking.claim_id for taking in self.unread)})
        if self.unread:
            # Their lease may have run out meanwhile, and others may have taken notice.
            pairs = [(taking.job_id, taking.claim_id) for taking in self.unread]
            with transaction(self._using) as connection:
                kept = statements_for(connection).renew(pairs, lease=settings.LEASE)
            self.unread = tuple(taking for taking in self.unread if taking.claim_id in kept)
            self._read(turn)
        self.unsure = False

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
                # Confirmed: whatever fails from here on, these are this worker's to run.
                self.unread += tuple(result.takings)
            except (DataError, IntegrityError) as error:
                # An outcome that the database refuses; anything else is the database's trouble.
                if not outcomes:
                    raise
                logger.warning("group settlement refused error=%s", one_line(error))
                kept = self._settle_apart(pending)
        self._sort(turn, finished, kept)
        return result

    def _sort(self, turn: Turn, finished: Sequence[Run], kept: set[UUID]) -> None:
        """Sort runs into those whose outcome is written and those whose claim is lost."""
        doubtful: list[Run] = []
        for run in finished:
            done = run.settled or run.claimed.claim_id in kept
            (turn.settled if done else doubtful).append(run)
        if not doubtful:
            return
        pairs = [(run.job.pk, run.claimed.claim_id) for run in doubtful]
        found = claims.ends(connections[self._using], pairs)
        lost: list[Run] = []
        for run in doubtful:
            written = _is_written(run, found.get(run.claimed.claim_id))
            (turn.settled if written else lost).append(run)
        turn.lost += lost
        for run in lost:
            logger.warning(
                "outcome refused, the claim is not held any more job=%s claim=%s",
                run.job.pk,
                run.claimed.claim_id,
            )

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

    def _read(self, turn: Turn) -> None:
        """Read the jobs that were claimed, and make runs of them."""
        if not self.unread:
            return
        try:
            loaded = claims.load(connections[self._using], self.unread)
        except Error:
            # A session that the database has ended meanwhile, perhaps: not worth a turn.
            connections[self._using].close_if_unusable_or_obsolete()
            loaded = claims.load(connections[self._using], self.unread)
        self.unread = ()
        for claimed in loaded:
            context = JobContext(claimed, self._scribe)
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
        claims.tell_settled(connection, outcomes)
        if outcomes:
            jobs = ", ".join(str(outcome.job_id) for outcome in outcomes)
            logger.warning("claim unconfirmed worker=%s jobs=%s", self._enrolment.worker, jobs)

    def sign_off(self, left: Iterable[Run]) -> list[Outcome]:
        """Write what becomes of the runs that are left, and leave the namespace.

        Returns what was written: the outcome of one that ended just now; one that has not begun
        is released, unless it begins at this very moment; else interrupted.
        """
        runs = sorted(left, key=lambda run: run.job.pk)
        written = self._written(runs)
        # Of those that an atomic handler wrote nobody has told yet.
        claims.tell_settled(
            connections[self._using],
            written + [run.outcome for run in runs if run.settled and run.outcome],
        )
        self._enrolment.tell("scheduler.stop")
        return written

    def _written(self, runs: list[Run]) -> list[Outcome]:
        last_try = time.monotonic() + SIGN_OFF
        tries = 0
        while True:
            tries += 1
            try:
                return retrying(lambda: self._sign_off(runs))
            except Error as error:
                # A dropped session, or an outage that ends in time; what these jobs came to is
                # worth a wait.
                if tries > 1 and time.monotonic() >= last_try:
                    raise
                logger.warning("sign off failed, once more error=%s", one_line(error))
            with suppress(Exception):
                connections[self._using].close()
            time.sleep(SIGN_OFF_PAUSE)

    def _sign_off(self, left: Iterable[Run]) -> list[Outcome]:
        with transaction(self._using) as connection:
            written = [outcome for run in left if (outcome := _last_written(connection, run))]
            released = [_released(taking) for taking in self.unread]
            kept = claims.settle(connection, released)
            written += [outcome for outcome in released if outcome.claim_id in kept]
            self._enrolment.leave(connection)
        return written


def _is_written(run: Run, end: tuple[str, str] | None) -> bool:
    """Tell whether what a run came to is what is stored: then the reply to its commit was lost.

    Only whoever holds a claim completes or fails it.
    """
    if run.outcome is None or end is None:
        return False
    state, reason = end
    if state == ExecutionState.COMPLETED and run.outcome.edge != "complete":
        # An atomic handler's: to its thread the lost reply looked like a failure.
        run.outcome = Outcome(job_id=run.job.pk, claim_id=run.claimed.claim_id, edge="complete")
        return True
    return state == EDGES[run.outcome.edge].execution and reason == run.outcome.reason


def _released(taking: Taking) -> Outcome:
    return Outcome(job_id=taking.job_id, claim_id=taking.claim_id, edge="release")


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
    if run.claimed.started:
        return [interrupted(run)]
    job_id, claim_id = run.job.pk, run.claimed.claim_id
    released = Outcome(job_id=job_id, claim_id=claim_id, edge="release", unstarted=True)
    return [released, interrupted(run)]


def _repeats(type: str, attempt: int, granted: int | None) -> bool:
    handler = registry.get(type)
    return handler is not None and repeats_interrupted(
        handler.policy, attempt, max_attempts=granted, default=settings.ON_INTERRUPT
    )
