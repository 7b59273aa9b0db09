"""What PostgreSQL does in fewer statements: one for each step of a claim, one for a settlement."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

from django.db.transaction import atomic

from ..conf import settings
from ..states import ACTIVE, EDGES, State
from .claiming import BATCH, EXECUTION_COLUMNS
from .enqueueing import COLUMNS, JSON_COLUMNS, NAMES, Inserted, NewJob
from .limits import limits_for
from .rows import Candidate, Outcome, Seen, Sight, Taking, Wanted
from .session import ENTRY, EXECUTION, JOB, NAMESPACE, as_uuid, in_states
from .settling import TOGETHER
from .statements import Statements
from .ticking import TICK, NewTick
from .updating import UpdateFromArrays

# For the rest of the transaction. JIT: what little cannot do without a barred way looks so dear
# that it would be compiled. Generic: where there is one plan only, it need not be made each time.
_STEADY_PLANS = {
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit"), "off"),
    "plan_cache_mode": "force_generic_plan",
}
_IDLE = "idle_in_transaction_session_timeout"

_HEAD = "e.job_id, e.owner_id, e.type, e.attempts, e.max_attempts, e.rank, e.run_at, e.created_at"
_ORDER = "e.rank, e.run_at, e.created_at, e.job_id"
# In place of what only a head has; attempts carries a number.
_NO_HEAD = ", NULL, NULL, {}, NULL, NULL, NULL, NULL"


@cache
def _look(*, queues: bool, lock: bool, now: str) -> str:
    """Return the statement of a look: at all ``queues`` but the given ones, or at those given.

    Owners and queues are found by hopping from one to the next along the index (a loose index
    scan), owners once round the wheel; nobody further along is visited than are asked for.
    """
    entry = f"SELECT e.{{}} FROM {ENTRY} e WHERE e.namespace = %(namespace)s"
    queue, owner = entry.format("queue"), entry.format("owner_id")
    owner += " AND e.queue = q.queue AND e.due"
    every_queue = (
        f"hops AS (({queue} ORDER BY e.queue LIMIT 1) UNION ALL SELECT ({queue}"
        " AND e.queue > h.queue ORDER BY e.queue LIMIT 1) FROM hops h WHERE h.queue IS NOT NULL),"
        " queues AS (SELECT queue FROM hops WHERE queue IS NOT NULL"
        " AND queue <> ALL(%(queues)s::text[]))"
    )
    these_queues = 'queues AS (SELECT unnest(%(queues)s::text[]) COLLATE "C" AS queue)'

    def walk(name: str, start: str, end: str) -> str:
        return (
            f"{name} AS (({owner}{start}{end} ORDER BY e.owner_id LIMIT 1) UNION ALL"
            f" SELECT ({owner} AND e.owner_id > w.owner_id{end} ORDER BY e.owner_id LIMIT 1)"
            f" FROM {name} w WHERE w.owner_id IS NOT NULL)"
        )

    # One by one: for IN the planner may walk through the whole namespace, and filter.
    active = " UNION ALL ".join(
        f"SELECT owner_id FROM {EXECUTION} WHERE namespace = %(namespace)s AND state = '{state}'"
        for state in (state.value for state in ACTIVE)
    )
    behind = walk("behind", " AND e.owner_id > %(after)s", "")
    before = walk("before", "", " AND e.owner_id <= %(after)s")
    return (
        "WITH RECURSIVE active AS MATERIALIZED (SELECT owner_id, COUNT(*) AS held"
        f" FROM ({active}) AS each GROUP BY owner_id),"
        f" {every_queue if queues else these_queues},"
        " wheel AS MATERIALIZED (SELECT q.queue, w.owner_id FROM queues q CROSS JOIN LATERAL ("
        f"WITH RECURSIVE {behind}, {before}"
        " SELECT owner_id FROM (SELECT owner_id FROM behind UNION ALL SELECT owner_id FROM before)"
        " turn WHERE owner_id IS NOT NULL AND owner_id <> ALL(ARRAY(SELECT owner_id FROM active"
        " WHERE held >= %(cap)s::int AND owner_id <> ALL(%(uncapped)s::text[])))"
        " LIMIT %(limit)s) w),"
        " heads AS MATERIALIZED (SELECT w.queue, h.* FROM wheel w CROSS JOIN LATERAL ("
        f"SELECT {_HEAD} FROM {ENTRY} e WHERE e.namespace = %(namespace)s AND e.queue = w.queue"
        f" AND e.due AND e.owner_id = w.owner_id ORDER BY {_ORDER} LIMIT (SELECT"
        " GREATEST(1, %(slots)s + 1 - COUNT(DISTINCT owner_id)) FROM wheel)"
        f"{' FOR UPDATE SKIP LOCKED' if lock else ''}) h)"
        " SELECT 'head', queue, owner_id, job_id, type, attempts, max_attempts, rank, run_at,"
        " created_at FROM heads"
        f" UNION ALL SELECT 'owner', queue, owner_id{_NO_HEAD.format('NULL')} FROM wheel"
        f" UNION ALL SELECT 'active', NULL, owner_id{_NO_HEAD.format('held')} FROM active"
        # By the order there is one index for it.
        f" UNION ALL SELECT 'ripe', NULL, NULL{_NO_HEAD.format('NULL')} WHERE (SELECT claimable_at"
        f" FROM {ENTRY} WHERE namespace = %(namespace)s AND NOT due ORDER BY claimable_at LIMIT 1)"
        f" <= {now}"
    )


class PostgreSQLStatements(UpdateFromArrays, Statements):
    """Set-based variants. Ids go in as arrays, so that one text serves any number of them."""

    by_turn = by_wait = by_active = ""
    filtered_state = "state || ''"
    heads_lock = True
    in_one_statement = True
    lock = " FOR NO KEY UPDATE"
    share = " FOR SHARE"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def insert_jobs(self, jobs: Sequence[NewJob], *, notify: str) -> dict[uuid.UUID, Inserted]:
        """Insert jobs, their entries and the wake-up in one statement."""
        types = ["uuid", *["text"] * (len(COLUMNS) - 3), "smallint", "timestamptz"]
        values: list[Any] = [self.values(job) for job in jobs]
        if len(jobs) == 1:
            (values,) = values
            source = f"(VALUES ({', '.join(f'%s::{type}' for type in types)}))"
        else:
            values = list(map(list, zip(*values, strict=True)))
            source = f"unnest({', '.join(f'%s::{type}[]' for type in types)})"
        chosen = ", ".join(f"n.{c}::jsonb" if c in JSON_COLUMNS else f"n.{c}" for c in COLUMNS[:-1])
        run_at = f"COALESCE(n.run_at, {self.now})"
        wake = "(SELECT pg_notify(%s, %s))" if notify else "NULL"
        rows = self.execute(
            f"WITH new AS (INSERT INTO {JOB} AS j ({NAMES}, claimable_at, created_at, updated_at,"
            f" state, held_reason, attempts) SELECT {chosen}, {run_at}, {run_at}, {self.now},"
            f" {self.now}, 'queued', '', 0 FROM {source} AS n({NAMES})"
            " ON CONFLICT DO NOTHING RETURNING j.*),"
            f" entry AS (INSERT INTO {ENTRY} (job_id, namespace, queue, due, owner_id, rank,"
            " run_at, created_at, claimable_at, type, attempts, max_attempts) SELECT id, namespace,"
            f" queue, claimable_at <= {self.now}, owner_id, -priority, run_at, created_at,"
            " claimable_at, type, attempts, max_attempts FROM new)"
            f" SELECT id, {self.utc('run_at')}, {self.utc('created_at')}, {wake} FROM new",
            [*values, *([notify, jobs[0].namespace] if notify else [])],
        )
        return {as_uuid(row[0]): self.inserted(row) for row in rows}

    def utc(self, column: str) -> str:
        # Under USE_TZ=False Django's cursors give local times, ambiguous for an hour a year.
        return f"({column} AT TIME ZONE 'UTC')"

    def reading(self) -> AbstractContextManager[object]:
        # The settings below hold for a transaction.
        return atomic(using=self.connection.alias)

    @contextmanager
    def settings_kept(self) -> Iterator[None]:
        names = [*_STEADY_PLANS, _IDLE]
        (values,) = self.execute(f"SELECT {', '.join(['current_setting(%s)'] * len(names))}", names)
        yield
        pairs = [part for pair in zip(names, values, strict=True) for part in pair]
        self.execute(f"SELECT {', '.join(['set_config(%s, %s, TRUE)'] * len(names))}", pairs)

    def lock_namespace(self, name: str, *, lock: bool = True) -> tuple[str, bool] | None:
        """Lock the row, and fix the plans of what follows in this transaction.

        The queue is empty most of the time, and statistics say so when it is not: the planner
        then prefers reading and sorting all of it to walking along the index (seconds at 100,000
        rows). Where these ways are barred the walks below have one plan only.
        """
        # Whoever is stopped while it holds this lock (a paused machine) holds up everybody.
        values = {**_STEADY_PLANS, _IDLE: f"{limits_for(settings.LEASE).answer:.3f}s"}
        fixed = "".join(
            f", set_config('{name}', '{value}', TRUE)" for name, value in values.items()
        )
        rows = self.execute(
            f"SELECT turn_after, paused_at IS NOT NULL{fixed} FROM {NAMESPACE}"
            f" WHERE name = %s{self.lock if lock else ''}",
            [name],
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def look(self, sight: Sight) -> Seen:
        """Look in one statement: what is active, who is next, and what they have."""
        queues = sight.excluded if sight.queues is None else {*sight.queues} - sight.excluded
        rows = self.execute(
            _look(queues=sight.queues is None, lock=sight.lock, now=self.now),
            {
                "namespace": sight.namespace,
                "queues": list(queues),
                "after": sight.after,
                "cap": sight.cap,
                "uncapped": list(sight.uncapped),
                "slots": sight.slots,
                "limit": sight.limit,
            },
        )
        active: dict[str, int] = {}
        owners: dict[str, list[str]] = {}
        heads = []
        ripe = False
        for kind, queue, owner, *values in rows:
            match kind:
                case "head":
                    heads.append(self.candidate(queue, (values[0], owner, *values[1:])))
                case "owner":
                    owners.setdefault(queue, []).append(owner)
                case "active":
                    active[owner] = values[2]
                case _:
                    ripe = True
        return Seen(ripe=ripe, active=active, owners=owners, heads=heads)

    def promote(self, namespace: str) -> int:
        return self.count(
            f"WITH ripe AS MATERIALIZED (SELECT job_id FROM {ENTRY} WHERE namespace = %s"
            f" AND due = FALSE AND claimable_at <= {self.now}"
            f" ORDER BY claimable_at LIMIT {BATCH}{self.skip_locked})"
            f" UPDATE {ENTRY} SET due = TRUE WHERE job_id = ANY(ARRAY(SELECT job_id FROM ripe))",
            [namespace],
        )

    def heads(
        self,
        namespace: str,
        queue: str,
        owners: Sequence[str],
        *,
        each: int,
        wanted: Wanted | None = None,
        skip: Sequence[uuid.UUID] = (),
        lock: bool = True,
    ) -> list[Candidate]:
        only, params = "", []
        if wanted is not None:
            only = " AND (e.type = ANY(%s) OR e.job_id = ANY(%s::uuid[]))"
            params = [list(wanted.types), list(wanted.ids)]
        # The limit must be a constant: with a parameter the planner reads and sorts every backlog.
        rows = self.execute(
            "SELECT h.job_id, h.owner_id, h.type, h.attempts, h.max_attempts,"
            " h.rank, h.run_at, h.created_at"
            " FROM unnest(%s::text[]) AS o(owner_id) CROSS JOIN LATERAL ("
            f"SELECT e.* FROM {ENTRY} e WHERE e.namespace = %s AND e.queue = %s AND e.due = TRUE"
            f' AND e.owner_id = o.owner_id COLLATE "C"{only}'
            f" ORDER BY e.rank, e.run_at, e.created_at, e.job_id LIMIT {int(each)}"
            f"{self.skip_locked if lock else ''}) h",
            [list(owners), namespace, queue, *params],
        )
        return [self.candidate(queue, row) for row in rows]

    def lock_entries(self, ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
        rows = self.execute(
            f"SELECT job_id FROM {ENTRY} WHERE job_id = ANY(%s) AND due{self.skip_locked}",
            [list(ids)],
        )
        return {as_uuid(row[0]) for row in rows}

    def take(
        self,
        takings: Sequence[Taking],
        *,
        worker: uuid.UUID,
        lease: float,
        turn: tuple[str, str] | None = None,
    ) -> list[uuid.UUID]:
        claim, start = EDGES["claim"], EDGES["claim_and_start"]
        turned = f" turned AS (UPDATE {NAMESPACE} SET turn_after = %s WHERE name = %s),"
        ids = [taking.job_id for taking in takings]
        # The ids stand in the joined tables' conditions too: then no way of joining, however cheap
        # it was when the plan was made, reads more than their rows. No index serves IS NOT FALSE.
        rows = self.execute(
            "WITH wanted AS MATERIALIZED (SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::bool[],"
            " %s::bool[]) AS w(job_id, claim_id, starts, repeats)),"
            f"{turned if turn else ''}"
            f" taken AS (DELETE FROM {ENTRY} e USING wanted w WHERE e.job_id = ANY(%s::uuid[])"
            " AND e.job_id = w.job_id AND e.due IS NOT FALSE RETURNING w.*),"
            f" moved AS (UPDATE {JOB} j SET claim_id = t.claim_id, attempts = j.attempts + 1,"
            f" state = CASE WHEN t.starts THEN '{start.target.value}' ELSE '{claim.target.value}'"
            f" END, updated_at = {self.now},"
            " held_since = CASE WHEN t.starts THEN NULL ELSE j.held_since END,"
            " held_reason = CASE WHEN t.starts THEN '' ELSE j.held_reason END"
            " FROM taken t WHERE j.id = ANY(%s::uuid[]) AND j.id = t.job_id"
            f" AND j.state IN {in_states(claim.sources)} RETURNING j.id, j.namespace,"
            " j.owner_id, j.attempts, j.claim_id, j.state, t.starts, t.repeats)"
            f" INSERT INTO {EXECUTION} ({EXECUTION_COLUMNS})"
            " SELECT id, namespace, owner_id, attempts, claim_id, %s, state,"
            f" {self.clock.sql(self.connection, plus=lease)}, repeats, {self.now},"
            f" CASE WHEN starts THEN {self.now} END, {self.now}, '', '', '', '', '', ''"
            " FROM moved RETURNING job_id",
            [
                ids,
                [taking.claim_id for taking in takings],
                [taking.starts for taking in takings],
                [taking.requeue_on_interrupt for taking in takings],
                *(reversed(turn) if turn else ()),
                ids,
                ids,
                worker,
            ],
        )
        return [as_uuid(row[0]) for row in rows]

    def claim_ticks(
        self, namespace: str, worker: uuid.UUID | None, ticks: Sequence[NewTick]
    ) -> set[uuid.UUID]:
        """Claim ticks in one statement."""
        if not ticks:
            return set()
        rows = self.execute(
            f"INSERT INTO {TICK} (namespace, name, scheduled_at, claimed_at, claimed_by, job_id,"
            f" outcome, reason, open) SELECT %s, name, scheduled_at, {self.now}, %s, job_id,"
            " outcome, reason, job_id IS NOT NULL FROM unnest(%s::text[], %s::timestamptz[],"
            " %s::uuid[], %s::text[], %s::text[])"
            f" AS n(name, scheduled_at, job_id, outcome, reason){self.insert_once}"
            " RETURNING job_id",
            [namespace, worker, *(list(column) for column in zip(*ticks, strict=True))],
        )
        return {as_uuid(row[0]) for row in rows if row[0] is not None}

    settled_at_once = 1_000

    def end_together(self, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        """Write ends of running jobs in one statement."""
        completed, failed = State.COMPLETED.value, State.FAILED.value
        assert {EDGES[edge].target.value for edge in TOGETHER} == {completed, failed}
        running = in_states(EDGES["complete"].sources)
        ids = [outcome.job_id for outcome in outcomes]
        # For the conditions of the joined tables too, as in take.
        rows = self.execute(
            "WITH data AS MATERIALIZED (SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::text[],"
            " %s::text[], %s::text[], %s::text[], %s::text[])"
            " AS d(job_id, claim_id, state, result, error, error_code, traceback)),"
            f" ended AS (UPDATE {EXECUTION} x SET state = d.state,"
            f" completed_at = CASE WHEN d.state = '{completed}' THEN {self.now} END,"
            f" failed_at = CASE WHEN d.state = '{failed}' THEN {self.now} END,"
            f" updated_at = {self.now}, result = d.result::jsonb, error = d.error,"
            " error_code = d.error_code, traceback = d.traceback"
            " FROM data d WHERE x.job_id = ANY(%s::uuid[]) AND x.job_id = d.job_id"
            f" AND x.claim_id = d.claim_id AND x.{self.filtered_state} IN {running}"
            " RETURNING x.job_id, x.claim_id, x.state)"
            f" UPDATE {JOB} j SET state = e.state, finished_at = {self.now},"
            f" updated_at = {self.now},"
            " key_hash = CASE WHEN j.key_scope = 'live' THEN NULL ELSE j.key_hash END"
            " FROM ended e WHERE j.id = ANY(%s::uuid[]) AND j.id = e.job_id"
            f" AND j.claim_id = e.claim_id AND j.state IN {running} RETURNING j.claim_id",
            [
                ids,
                [outcome.claim_id for outcome in outcomes],
                [EDGES[outcome.edge].target.value for outcome in outcomes],
                [outcome.result for outcome in outcomes],
                [outcome.error for outcome in outcomes],
                [outcome.error_code for outcome in outcomes],
                [outcome.traceback for outcome in outcomes],
                ids,
                ids,
            ],
        )
        return {as_uuid(row[0]) for row in rows}
