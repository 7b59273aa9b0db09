"""The claim: free slots are dealt to the owners' waiting jobs, no cap exceeded."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from django.db.backends.base.base import BaseDatabaseWrapper

from ..db import (
    Candidate,
    Seen,
    Sight,
    Statements,
    Taking,
    Wanted,
    enough_each,
    statements_for,
)
from ..models import Namespace
from ..states import HeldReason
from ..turns import circle, deal
from .holding import NEVER, live_types

# How much wider each further look along the owners is, when a look filled no slot.
_WIDER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What one worker may take now.

    ``queues`` None means every queue of the namespace but ``excluded``. ``gated`` types have a
    can_run: of these only ``approved`` jobs are taken, and they do not start at once. ``repeats``
    says whether (type, attempt, attempts granted) goes back to the queue when interrupted.
    ``lease`` is in seconds.
    """

    namespace: str
    worker: uuid.UUID
    slots: int
    types: frozenset[str]
    lease: float
    queues: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()
    gated: frozenset[str] = frozenset()
    approved: frozenset[uuid.UUID] = frozenset()
    owner_cap: int | None = None
    uncapped: frozenset[str] = frozenset()
    global_cap: int | None = None
    repeats: Callable[[str, int, int | None], bool] = lambda type, attempt, granted: False
    make_id: Callable[[], uuid.UUID] = uuid.uuid4


@dataclass(slots=True)
class ClaimResult:
    """What a claim took.

    ``promoted`` is how many waiting entries became due in it; ``left_over`` says that gated jobs
    stand in line that nobody has approved.
    """

    takings: list[Taking] = field(default_factory=list)
    promoted: int = 0
    left_over: bool = False
    paused: bool = False


def claim(connection: BaseDatabaseWrapper, request: ClaimRequest) -> ClaimResult:
    """Take as many jobs as there are slots, owners in turn, no cap exceeded.

    Call it inside a transaction (READ COMMITTED; on SQLite one that holds the write lock): it
    locks the namespace's row first, which puts the claims of all workers in order.
    """
    statements = statements_for(connection)
    row = statements.lock_namespace(request.namespace)
    if row is None:
        Namespace.objects.using(connection.alias).bulk_create(
            [Namespace(name=request.namespace)], ignore_conflicts=True
        )
        row = statements.lock_namespace(request.namespace)
        assert row is not None
    turn_after, paused = row
    if paused:
        return ClaimResult(paused=True)
    look = _Look(statements, request, turn_after, locked=True)
    promoted = 0
    if look.seen.ripe:
        promoted = statements.promote(request.namespace)
        look = _Look(statements, request, turn_after, locked=True)
    chosen, last = look.choose_and_lock()
    taken: set[uuid.UUID] = set()
    takings = [_taking(candidate, request) for candidate in chosen]
    if takings:
        # Written only when it changes: each write leaves a dead version of that row behind.
        turn = None if last == turn_after else (request.namespace, last)
        taken = set(statements.take(takings, worker=request.worker, lease=request.lease, turn=turn))
    return ClaimResult(
        [taking for taking in takings if taking.job_id in taken],
        promoted=promoted,
        left_over=look.unapproved,
    )


def peek(connection: BaseDatabaseWrapper, request: ClaimRequest) -> list[uuid.UUID]:
    """Return the gated jobs that a claim would come to now, in turn order; locks nothing."""
    statements = statements_for(connection)
    with statements.reading():
        row = statements.lock_namespace(request.namespace, lock=False)
        if row is None or row[1]:
            return []
        chosen, _ = _Look(statements, request, row[0], locked=False).choose()
    return [candidate.job_id for candidate in chosen if candidate.type in request.gated]


def _taking(candidate: Candidate, request: ClaimRequest) -> Taking:
    attempt = candidate.attempts + 1
    return Taking(
        job_id=candidate.job_id,
        owner_id=candidate.owner_id,
        claim_id=request.make_id(),
        starts=candidate.type not in request.gated,
        requeue_on_interrupt=request.repeats(candidate.type, attempt, candidate.max_attempts),
    )


class _Look:
    """Chooses whom the free slots go to.

    Looks at as many owners as there are slots first, and at no more of an owner's jobs than that
    needs. Only where these had too little for this worker does it look further along, so that a
    claim usually costs the same however many owners wait, and with whatever backlogs.
    """

    def __init__(
        self, statements: Statements, request: ClaimRequest, turn_after: str, *, locked: bool
    ) -> None:
        self.statements = statements
        self.request = request
        self.turn_after = turn_after
        self.locked = locked
        self.unapproved = False  # whether gated jobs came up that nobody has approved
        self.skip: list[uuid.UUID] = []  # somebody else holds their rows
        self.seen = self._see(request.slots)
        self.active = self.seen.active
        self.slots = request.slots
        if request.global_cap is not None:
            self.slots = min(self.slots, request.global_cap - sum(self.active.values()))

    def _see(self, limit: int) -> Seen:
        request = self.request
        return self.statements.look(
            Sight(
                namespace=request.namespace,
                queues=request.queues,
                excluded=request.excluded,
                after=self.turn_after,
                cap=request.owner_cap,
                uncapped=request.uncapped,
                slots=request.slots,
                limit=limit,
                skip=tuple(self.skip),
                lock=self.locked,
            )
        )

    def choose_and_lock(self) -> tuple[list[Candidate], str]:
        """Choose jobs whose rows nobody else holds: in place of a held one its owner's next."""
        while True:
            chosen, last = self.choose()
            if not chosen or self.statements.heads_lock:
                return chosen, last
            locked = self.statements.lock_candidates(chosen)
            if len(locked) == len(chosen):
                return chosen, last
            self.skip += sorted(c.job_id for c in chosen if c.job_id not in locked)
            self.seen = self._see(self.request.slots)

    def choose(self) -> tuple[list[Candidate], str]:
        """Return the jobs that the free slots go to, and the new turn."""
        if self.slots <= 0:
            return [], self.turn_after
        seen, limit = self.seen, self.request.slots
        while True:
            owners, all_seen = self._in_sight(seen.owners, limit)
            found = self._fill(owners, seen)
            chosen, last = self._deal(found)
            # A second job for an owner is fair only if no owner further along has a first.
            one_each = len({candidate.owner_id for candidate in chosen}) == self.slots
            if all_seen or one_each:
                return chosen, last
            limit *= _WIDER
            seen = self._see(limit)

    def _in_sight(
        self, owners: dict[str, list[str]], limit: int
    ) -> tuple[dict[str, list[str]], bool]:
        """Return the owners of each queue that may be chosen from, and whether these are all."""
        cut_short = [names for names in owners.values() if len(names) == limit]
        if len(owners) > 1 and cut_short:
            # No further than all queues were looked through: an owner behind that may have a
            # better job in a queue in which this look did not come to it.
            order = {
                owner: place
                for place, owner in enumerate(
                    circle((name for names in owners.values() for name in names), self.turn_after)
                )
            }
            horizon = min(order[names[-1]] for names in cut_short)
            owners = {
                queue: [name for name in names if order[name] <= horizon]
                for queue, names in owners.items()
            }
        return owners, not cut_short

    def _fill(self, owners: dict[str, list[str]], seen: Seen) -> list[Candidate]:
        """Return as many of the owners' next jobs as the slots may need."""
        each = enough_each(self.request.slots, seen.owners)
        heads = [head for head in seen.heads if head.owner_id in owners[head.queue]]
        found, plain = self._usable(heads, owners, each)
        if each < self.slots and len(self._deal(found)[0]) < self.slots:
            cut_short = _cut_short(found, each)
            more = {
                queue: [name for name in names if (queue, name) in cut_short]
                for queue, names in owners.items()
            }
            if plain:
                heads = self._ask(more, self.slots, wanted=None)
                again, _ = self._usable(heads, more, self.slots)
            else:
                again = self._wanted(more, self.slots)
            found = [c for c in found if (c.queue, c.owner_id) not in cut_short] + again
        return found

    def _usable(
        self, found: list[Candidate], owners: dict[str, list[str]], each: int
    ) -> tuple[list[Candidate], bool]:
        """Return the owners' next jobs that can be taken now.

        ``found`` was looked for without a filter, which shows the jobs that nobody knows. Returns
        also whether that was enough.
        """
        strangers = [c for c in found if c.type not in self.request.types]
        closed = self.locked and [c for c in found if self._is_closed(c)]
        self.unapproved = self.unapproved or bool(closed)
        if not strangers and not closed:
            return found, True
        if strangers and self.locked:
            self._put_off_unknown({(c.queue, c.owner_id, c.type) for c in strangers})
        return self._wanted(owners, each), False

    def _wanted(self, owners: dict[str, list[str]], each: int) -> list[Candidate]:
        """Look for jobs of the types that can be taken now, and for the approved ones."""
        open_types = self.request.types - self.request.gated if self.locked else self.request.types
        approved = self.request.approved if self.locked else frozenset()
        if not open_types and not approved:
            return []
        wanted = Wanted(tuple(sorted(open_types)), tuple(sorted(approved)))
        found = self._ask(owners, each, wanted=wanted)
        # An approved job may have become one of a type that this worker does not know.
        return [c for c in found if c.type in self.request.types]

    def _ask(
        self, owners: dict[str, list[str]], each: int, *, wanted: Wanted | None
    ) -> list[Candidate]:
        return [
            candidate
            for queue, names in owners.items()
            if names
            for candidate in self.statements.heads(
                self.request.namespace,
                queue,
                names,
                each=each,
                wanted=wanted,
                skip=self.skip,
                lock=self.locked,
            )
        ]

    def _is_closed(self, candidate: Candidate) -> bool:
        gated = candidate.type in self.request.gated
        return gated and candidate.job_id not in self.request.approved

    def _put_off_unknown(self, strangers: Iterable[tuple[str, str, str]]) -> None:
        """Take jobs out of the way whose type no live worker knows; one that does frees them.

        Under the namespace's lock, which a worker that registers its types takes too: it either
        is seen here or sees what was put off.
        """
        namespace = self.request.namespace
        known = live_types(self.statements.connection, namespace) | self.request.types
        for queue, owner, type in sorted(strangers):
            if type not in known:
                ids = self.statements.due_of_type(namespace, queue, owner, type)
                self.statements.put_off(ids, HeldReason.NO_HANDLER, until=NEVER)

    def _deal(self, found: Iterable[Candidate]) -> tuple[list[Candidate], str]:
        heads: dict[str, list[Candidate]] = {}
        for candidate in sorted(found, key=lambda candidate: candidate.order):
            heads.setdefault(candidate.owner_id, []).append(candidate)
        request, room = self.request, {}
        if request.owner_cap is not None:
            room = {
                owner: request.owner_cap - self.active.get(owner, 0)
                for owner in heads
                if owner not in request.uncapped
            }
        return deal(heads, self.turn_after, slots=self.slots, room=room)


def _cut_short(found: Sequence[Candidate], each: int) -> set[tuple[str, str]]:
    """Return the (queue, owner) pairs that may have more than the ``each`` found."""
    counts: dict[tuple[str, str], int] = {}
    for candidate in found:
        pair = (candidate.queue, candidate.owner_id)
        counts[pair] = counts.get(pair, 0) + 1
    return {pair for pair, count in counts.items() if count >= each}
