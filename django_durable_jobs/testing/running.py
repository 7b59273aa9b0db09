"""Running jobs in the calling thread, on its connection: a worker's turns without its threads."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections
from django.db.transaction import set_rollback

from .. import registry
from ..audit import audited, send
from ..claims import free_known, put_off
from ..conf import Settings, settings
from ..db import statements_for, transaction
from ..errors import DurableJobsError, JobStopped, JobTimedOut
from ..fields import to_utc
from ..ids import uuid7
from ..models import Execution, Job
from ..namespaces import database
from ..registry import Declaration
from ..retry import Discard, Retry
from ..states import ExecutionState, State
from ..worker.desk import Desk, Turn
from ..worker.enrolment import Enrolment
from ..worker.gate import Gate
from ..worker.herald import of_turn
from ..worker.isolation import in_fresh_context
from ..worker.running import Arguments, Run, Runner, ask, given_back, plainly
from .clocks import aware, standing, ticking
from .leading import Leader, chosen, leading
from .savepoints import BrokenTransaction, CallersScribe, as_if_committed

logger = logging.getLogger(__name__)

LIMIT = 1_000

# What a handler may end with in a worker, beside exceptions. Anything else of the kind (Ctrl-C,
# pytest.fail) is not the job's but the test's.
_ENDS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError, JobStopped, JobTimedOut)


def run_due(
    namespace: str | None = None,
    *,
    queues: Sequence[str] | None = None,
    using: str | None = None,
    raise_errors: bool = False,
    on_commit: bool = True,
    limit: int = LIMIT,
) -> list[Execution]:
    """Run every job that is due, also those that these put in, until nothing is due.

    Claims, handlers and settlements are a worker's with one slot, in this thread, on this
    connection, inside or outside of a transaction. Returns the attempts as they ended, in their
    order, each with its ``job``.

    A handler that raises fails its job, or has it retried, as in a worker; with ``raise_errors``
    the first such exception is raised here, once it is settled. What handlers give to
    ``transaction.on_commit`` is called when they have ended, unless ``on_commit`` is False.
    Raises DurableJobsError (code ``limit``) where more than ``limit`` attempts would be made.
    """
    house = _House(namespace, using, queues, raise_errors, on_commit, limit)
    with ticking(house.using):
        house.run_due()
        return house.attempts()


def run_until(
    time: datetime,
    namespace: str | None = None,
    *,
    queues: Sequence[str] | None = None,
    using: str | None = None,
    raise_errors: bool = False,
    on_commit: bool = True,
    limit: int = LIMIT,
    schedules: bool | Iterable[str] = False,
) -> list[Execution]:
    """Run every job that falls due until ``time``, each at its own time, as ``run_due`` does.

    With ``schedules``, the names of declared ones or True for all, their ticks fire on the way as
    a leader fires them, from the moment on at which the first such call is made.

    Moves the clock that ``clock`` has put in place from one due moment to the next, and at the end
    to ``time``; without one, time moves for this call only. Retries wait for their pauses, and a
    ``can_run`` that says no is asked again after a worker's pauses: that counts towards
    ``limit``. Raises ValueError where ``time`` is past, UnknownSchedule for a name that is not
    declared, and DurableJobsError (code ``led-already``) where a worker leads the namespace.
    """
    declarations = chosen(schedules)
    house = _House(namespace, using, queues, raise_errors, on_commit, limit)
    with standing(house.using) as clock:
        target = to_utc(aware(time))
        if target < clock.value:
            raise ValueError(f"{target.isoformat()} is past: it is {clock.value.isoformat()}.")
        with house.leading(declarations) as leader:
            house.run_all(leader)
            while (moment := house.next_moment(leader, clock.value)) and moment <= target:
                clock.move_to(moment)
                house.run_all(leader)
            clock.move_to(target)
            if leader is not None:
                leader.fire()  # notes the last ends
        return house.attempts()


arun_due = sync_to_async(run_due)
arun_until = sync_to_async(run_until)


class _House:
    """A worker's desk, gate and runner, one after the other in one thread."""

    def __init__(
        self,
        namespace: str | None,
        using: str | None,
        queues: Sequence[str] | None,
        raise_errors: bool,
        on_commit: bool,
        limit: int,
    ) -> None:
        if isinstance(queues, str):
            raise TypeError(f"queues is the text {queues!r}; accepted: a list of names, or None.")
        self.using = database(using)
        self._namespace = Settings.NAMESPACE.unless(namespace, "namespace")
        self._queues = None if queues is None else tuple(queues)
        self._raise_errors = raise_errors
        self._on_commit = on_commit
        self._limit = limit
        self._claims: list[UUID] = []
        self._types: Counter[str] = Counter()
        self._scribe = CallersScribe(self.using)
        longest = settings.MAX_SLEEP
        self._gate = _Gate(self.using, self._scribe, longest=longest)
        self._runner = _Runner(self.using, self._scribe, longest, draining=lambda: False)
        self._worker = uuid7()
        enrolment = Enrolment(
            self._worker,
            self._namespace,
            self.using,
            slots=1,
            queues=self._queues,
            excluded=frozenset(),
        )
        self._desk = Desk(enrolment, self._gate, self._scribe, make_id=uuid7)

    def leading(self, declarations: list[Declaration]) -> AbstractContextManager[Leader | None]:
        """Lead inside the block, for these schedules."""
        return leading(
            self._namespace, self.using, self._worker, declarations, on_commit=self._on_commit
        )

    def run_all(self, leader: Leader | None) -> None:
        """Fire and run until nothing is due: the end of a run may let a tick fire that waits."""
        if leader is None:
            self.run_due()
            return
        made = -1
        while made < len(self._claims):
            made = len(self._claims)
            leader.fire()
            self.run_due()

    def run_due(self) -> None:
        """Run until nothing is due."""
        with self._settings_kept(), transaction(self.using) as connection:
            free_known(connection, self._namespace, registry.types())
        while self._take():
            pass

    def next_moment(self, leader: Leader | None, after: datetime) -> datetime | None:
        """Return when the next job that waits becomes claimable, or the next tick due."""
        statements = statements_for(connections[self.using])
        waiting = statements.next_claimable_at(self._namespace, self._queues)
        tick = leader.next_fire(after) if leader is not None else None
        return min((each for each in (waiting, tick) if each and each > after), default=None)

    def attempts(self) -> list[Execution]:
        """Return the attempts made, as they are stored, in their order."""
        found = Execution.objects.using(self.using).exclude(state=ExecutionState.RELEASED)
        made = found.filter(claim_id__in=self._claims).select_related("job")
        by_claim = {each.claim_id: each for each in made}
        return [by_claim[claim] for claim in self._claims if claim in by_claim]

    def _take(self) -> bool:
        """Claim one job and run it; tell whether there may be more."""
        asked = self._gate.asked
        spent = len(self._claims) + self._gate.refused.total() >= self._limit
        with transaction(self.using) if spent else nullcontext():
            turn = self._turn([], free=1)
            found = bool(turn.started) or self._gate.asked > asked
            if spent and found:
                set_rollback(True, using=self.using)
        if spent and found:
            raise self._too_many()
        self._tell(turn)
        for run in turn.started:
            self._run(run)
        return found or turn.more

    def _turn(self, finished: Sequence[Run], *, free: int) -> Turn:
        with self._settings_kept():
            return self._desk.turn(finished, free=free, held=())

    def _tell(self, turn: Turn) -> None:
        if audited():
            send(of_turn(turn, self._worker))

    def _settings_kept(self) -> AbstractContextManager[object]:
        connection = connections[self.using]
        # Without a transaction around them they hold for the turn alone.
        if not connection.in_atomic_block:
            return nullcontext()
        return statements_for(connection).settings_kept()

    def _run(self, run: Run) -> None:
        self._claims.append(run.claimed.claim_id)
        self._types[run.job.type] += 1
        in_fresh_context(lambda: self._runner.run(run, on_commit=self._on_commit))
        error = self._runner.raised.pop(run.claimed.claim_id, None)
        if error is not None and not isinstance(error, _ENDS):
            raise error
        self._tell(self._turn([run], free=0))
        if error is not None and self._raise_errors:
            raise error

    def _too_many(self) -> DurableJobsError:
        told = f"The limit of {self._limit} attempts is spent, and more is due: does a job put"
        told += f" itself in again? Run were {_counts(self._types)}."
        if self._gate.refused:
            told += f" Told no by can_run, which counts too, were {_counts(self._gate.refused)}."
        return DurableJobsError(f"{told} If that is wanted, give a higher limit.", code="limit")


def _counts(types: Counter[str]) -> str:
    return ", ".join(f"{type} ({count})" for type, count in types.most_common(5)) or "none"


class _Gate(Gate):
    """Asks can_run at once, in this thread."""

    def __init__(self, using: str, scribe: CallersScribe, *, longest: float) -> None:
        super().__init__(using, scribe, longest=longest, answered=lambda: None)
        self.asked = 0
        self.refused: Counter[str] = Counter()

    def ask(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            self.asked += 1
            if self._may(id):
                self._approved[id] = math.inf

    def _may(self, id: UUID) -> bool:
        job = Job.objects.using(self._using).filter(pk=id, state=State.QUEUED).first()
        handler = registry.get(job.type) if job is not None else None
        if job is None or handler is None or handler.can_run is None:
            return False
        try:
            may = as_if_committed(
                lambda: in_fresh_context(lambda: ask(handler, job)), on_commit=False
            )
        except BrokenTransaction:
            may = False
        if not may:
            self.refused[job.type] += 1
            self._scribe.write(lambda c: put_off(c, job, longest=self._longest))
        return may


@dataclass(frozen=True, slots=True)
class _Runner(Runner):
    """Runs a job in this thread; ``raised`` tells what failed it, by claim."""

    raised: dict[UUID, BaseException] = field(default_factory=dict)

    def run(self, run: Run, *, on_commit: bool) -> None:
        """Take a claimed job to its outcome."""
        try:
            arguments = as_if_committed(lambda: self.prepare(run), on_commit=False)
        except BrokenTransaction:
            run.outcome, arguments = given_back(run), None
        if arguments is None:
            return
        scribe: Any = self.scribe
        scribe.begin()
        self._call(run, arguments, on_commit=on_commit)
        scribe.write_again()

    def _call(self, run: Run, arguments: Arguments, *, on_commit: bool) -> None:
        handler = run.handler
        assert handler is not None
        if handler.atomic:
            # Its transaction is not over before the settlement: hooks are called after that.
            try:
                as_if_committed(lambda: self.call(run, arguments), on_commit=on_commit)
            except Exception as error:
                if not run.settled:
                    self.fail(run, error)
                else:
                    logger.exception("on_commit hook failed job=%s", run.job.pk)
            return
        bridge = _awaited if handler.is_async else plainly

        def within(function: Callable[[], Any]) -> Any:
            return as_if_committed(lambda: bridge(function), on_commit=on_commit)

        self.call(run, arguments, within)

    def _failed(self, run: Run, error: BaseException, **how: bool) -> Any:
        if not isinstance(error, (Discard, Retry)):
            self.raised[run.claimed.claim_id] = error
        return Runner._failed(self, run, error, **how)


def _awaited(function: Callable[[], Any]) -> Any:
    """Await what the function returns; the ORM's calls in it come back to this thread."""

    async def awaited() -> Any:
        return await function()

    return async_to_sync(awaited)()
