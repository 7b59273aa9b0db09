"""What PostgreSQL does in fewer statements: one for each step of a claim, one for a settlement."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from django.db.transaction import atomic

from ..conf import settings
from ..states import ACTIVE, EDGES, State
from .claiming import BATCH, EXECUTION_COLUMNS
from .enqueueing import COLUMNS, JSON_COLUMNS, NAMES, Inserted, NewJob
from .rows import Candidate, Outcome, Survey, Taking, Wanted
from .session import ENTRY, EXECUTION, JOB, NAMESPACE, as_uuid, in_states
from .settling import TOGETHER
from .statements import Statements

# For the rest of the transaction. JIT: what little cannot do without a barred way looks so dear
# that it would be compiled.
_STEADY_PLANS = ", ".join(
    f"set_config('{name}', 'off', TRUE)"
    for name in ("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit")
)


class PostgreSQLStatements(Statements):
    """Set-based variants. Ids go in as arrays, so that one text serves any number of them."""

    by_turn = by_wait = by_active = ""
    heads_lock = True
    in_one_statement = True
    lock = " FOR NO KEY UPDATE"
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

    def lock_namespace(self, name: str, *, lock: bool = True) -> tuple[str, bool] | None:
        """Lock the row, and fix the plans of what follows in this transaction.

        The queue is empty most of the time, and statistics say so when it is not: the planner
        then prefers reading and sorting all of it to walking along the index (seconds at 100,000
        rows). Where these ways are barred the walks below have one plan only.
        """
        # Whoever is stopped while it holds this lock (a paused machine) holds up everybody.
        limit = f"set_config('idle_in_transaction_session_timeout', '{settings.LEASE:.3f}s', TRUE)"
        rows = self.execute(
            f"SELECT turn_after, paused_at IS NOT NULL, {limit}, {_STEADY_PLANS} FROM {NAMESPACE}"
            f" WHERE name = %s{self.lock if lock else ''}",
            [name],
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def survey(self, namespace: str, *, queues: bool, promote: bool) -> Survey:
        """Ask in one statement; without a promotion it changes nothing."""
        parts = [
            "SELECT 'active', owner_id, COUNT(*) FROM"
            f" {EXECUTION} WHERE namespace = %s AND state IN {in_states(ACTIVE)} GROUP BY owner_id"
        ]
        params = [namespace]
        steps = []
        if promote:
            steps += [
                f"ripe AS MATERIALIZED (SELECT job_id FROM {ENTRY} WHERE namespace = %s"
                f" AND due = FALSE AND claimable_at <= {self.now}"
                f" ORDER BY claimable_at LIMIT {BATCH}{self.skip_locked})",
                f"promoted AS (UPDATE {ENTRY} SET due = TRUE WHERE job_id ="
                " ANY(ARRAY(SELECT job_id FROM ripe)) RETURNING 1)",
            ]
            parts.append("SELECT 'promoted', NULL, COUNT(*) FROM promoted")
            params = [namespace, *params]
        if queues:
            hop = f"SELECT e.queue FROM {ENTRY} e WHERE e.namespace = %s"
            steps.append(
                f"hops AS (({hop} ORDER BY e.queue LIMIT 1) UNION ALL SELECT ({hop} AND"
                " e.queue > h.queue ORDER BY e.queue LIMIT 1) FROM hops h"
                " WHERE h.queue IS NOT NULL)"
            )
            parts.append("SELECT 'queue', queue, 0 FROM hops WHERE queue IS NOT NULL")
            params = [*params[:-1], namespace, namespace, params[-1]]
        start = f"WITH RECURSIVE {', '.join(steps)} " if steps else ""
        rows = self.execute(start + " UNION ALL ".join(parts), params)
        return Survey(
            promoted=sum(count for kind, _, count in rows if kind == "promoted"),
            active={name: count for kind, name, count in rows if kind == "active"},
            queues=tuple(name for kind, name, _ in rows if kind == "queue"),
        )

    def owners_due(
        self, namespace: str, queue: str, *, after: str, full: Sequence[str], limit: int
    ) -> list[str]:
        """Hop along the index in one recursive query (a loose index scan), once round the wheel."""
        chosen = "namespace = %s AND queue = %s AND due = TRUE"

        def walk(name: str, bound: str) -> str:
            return (
                f"{name} AS ((SELECT owner_id FROM {ENTRY} WHERE {chosen} AND owner_id {bound} %s"
                " ORDER BY owner_id LIMIT 1) UNION ALL"
                f" SELECT (SELECT e.owner_id FROM {ENTRY} e WHERE {chosen}"
                " AND e.owner_id > w.owner_id ORDER BY e.owner_id LIMIT 1)"
                f" FROM {name} w WHERE w.owner_id IS NOT NULL)"
            )

        rows = self.execute(
            f"WITH RECURSIVE {walk('behind', '>')}, {walk('before', '>=')}"
            " SELECT owner_id FROM (SELECT owner_id FROM behind UNION ALL"
            " (SELECT owner_id FROM before WHERE owner_id <= %s)) AS wheel"
            " WHERE owner_id IS NOT NULL AND owner_id <> ALL(%s) LIMIT %s",
            [
                *(namespace, queue, after, namespace, queue),
                *(namespace, queue, "", namespace, queue),
                *(after, list(full), limit),
            ],
        )
        return [row[0] for row in rows]

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
        rows = self.execute(
            "WITH wanted AS MATERIALIZED (SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::bool[],"
            " %s::bool[]) AS w(job_id, claim_id, starts, repeats)),"
            f"{turned if turn else ''}"
            f" taken AS (DELETE FROM {ENTRY} e USING wanted w WHERE e.job_id = w.job_id AND e.due"
            " RETURNING w.*),"
            f" moved AS (UPDATE {JOB} j SET claim_id = t.claim_id, attempts = j.attempts + 1,"
            f" state = CASE WHEN t.starts THEN '{start.target.value}' ELSE '{claim.target.value}'"
            f" END, updated_at = {self.now},"
            " held_since = CASE WHEN t.starts THEN NULL ELSE j.held_since END,"
            " held_reason = CASE WHEN t.starts THEN '' ELSE j.held_reason END"
            " FROM taken t WHERE j.id = t.job_id"
            f" AND j.state IN {in_states(claim.sources)} RETURNING j.id, j.namespace,"
            " j.owner_id, j.attempts, j.claim_id, j.state, t.starts, t.repeats)"
            f" INSERT INTO {EXECUTION} ({EXECUTION_COLUMNS})"
            " SELECT id, namespace, owner_id, attempts, claim_id, %s, state,"
            f" {self.clock.sql(self.connection, plus=lease)}, repeats, {self.now},"
            f" CASE WHEN starts THEN {self.now} END, {self.now}, '', '', '', '', '', ''"
            " FROM moved RETURNING job_id",
            [
                [taking.job_id for taking in takings],
                [taking.claim_id for taking in takings],
                [taking.starts for taking in takings],
                [taking.requeue_on_interrupt for taking in takings],
                *(reversed(turn) if turn else ()),
                worker,
            ],
        )
        return [as_uuid(row[0]) for row in rows]

    settled_at_once = 1_000

    def end_together(self, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        """Write ends of running jobs in one statement."""
        completed, failed = State.COMPLETED.value, State.FAILED.value
        assert {EDGES[edge].target.value for edge in TOGETHER} == {completed, failed}
        running = in_states(EDGES["complete"].sources)
        rows = self.execute(
            "WITH data AS MATERIALIZED (SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::text[],"
            " %s::text[], %s::text[], %s::text[], %s::text[])"
            " AS d(job_id, claim_id, state, result, error, error_code, traceback)),"
            f" ended AS (UPDATE {EXECUTION} x SET state = d.state,"
            f" completed_at = CASE WHEN d.state = '{completed}' THEN {self.now} END,"
            f" failed_at = CASE WHEN d.state = '{failed}' THEN {self.now} END,"
            f" updated_at = {self.now}, result = d.result::jsonb, error = d.error,"
            " error_code = d.error_code, traceback = d.traceback"
            f" FROM data d WHERE x.job_id = d.job_id AND x.claim_id = d.claim_id"
            f" AND x.state IN {running} RETURNING x.job_id, x.claim_id, x.state)"
            f" UPDATE {JOB} j SET state = e.state, finished_at = {self.now},"
            f" updated_at = {self.now},"
            " key_hash = CASE WHEN j.key_scope = 'live' THEN NULL ELSE j.key_hash END"
            f" FROM ended e WHERE j.id = e.job_id AND j.claim_id = e.claim_id"
            f" AND j.state IN {running} RETURNING j.claim_id",
            [
                [outcome.job_id for outcome in outcomes],
                [outcome.claim_id for outcome in outcomes],
                [EDGES[outcome.edge].target.value for outcome in outcomes],
                [outcome.result for outcome in outcomes],
                [outcome.error for outcome in outcomes],
                [outcome.error_code for outcome in outcomes],
                [outcome.traceback for outcome in outcomes],
            ],
        )
        return {as_uuid(row[0]) for row in rows}
