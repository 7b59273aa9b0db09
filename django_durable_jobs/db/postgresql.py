"""What PostgreSQL does in fewer statements: one for each step of a claim, one for a settlement."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from ..states import EDGES, State
from .enqueueing import COLUMNS, JSON_COLUMNS, NAMES, Inserted, NewJob
from .rows import Candidate, Outcome, Taking
from .session import ENTRY, EXECUTION, JOB, as_uuid, in_states
from .statements import Statements

# Settlements that travel together; the others are rare and go one by one.
_GROUPED = ("complete", "fail")


class PostgreSQLStatements(Statements):
    """Set-based variants. Ids go in as arrays, so that one text serves any number of them."""

    lock = " FOR NO KEY UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def insert_jobs(self, jobs: Sequence[NewJob], *, notify: str) -> dict[uuid.UUID, Inserted]:
        """Insert jobs, their entries and the wake-up in one statement."""
        types = ["uuid[]", *["text[]"] * (len(COLUMNS) - 3), "smallint[]", "timestamptz[]"]
        chosen = ", ".join(f"n.{c}::jsonb" if c in JSON_COLUMNS else f"n.{c}" for c in COLUMNS[:-1])
        run_at = f"COALESCE(n.run_at, {self.now})"
        arrays = ", ".join(f"%s::{type}" for type in types)
        wake = "(SELECT pg_notify(%s, %s))" if notify else "NULL"
        rows = self.execute(
            f"WITH new AS (INSERT INTO {JOB} AS j ({NAMES}, claimable_at, created_at, updated_at,"
            f" state, held_reason, attempts) SELECT {chosen}, {run_at}, {run_at}, {self.now},"
            f" {self.now}, 'queued', '', 0 FROM unnest({arrays}) AS n({NAMES})"
            " ON CONFLICT DO NOTHING RETURNING j.*),"
            f" entry AS (INSERT INTO {ENTRY} (job_id, namespace, queue, due, owner_id, rank,"
            " run_at, created_at, claimable_at, type, attempts, max_attempts) SELECT id, namespace,"
            f" queue, claimable_at <= {self.now}, owner_id, -priority, run_at, created_at,"
            " claimable_at, type, attempts, max_attempts FROM new)"
            f" SELECT id, {self.utc('run_at')}, {self.utc('created_at')}, {wake} FROM new",
            [
                *map(list, zip(*[self.values(job) for job in jobs], strict=True)),
                *([notify, jobs[0].namespace] if notify else []),
            ],
        )
        return {as_uuid(row[0]): self.inserted(row) for row in rows}

    def utc(self, column: str) -> str:
        # Under USE_TZ=False Django's cursors give local times, ambiguous for an hour a year.
        return f"({column} AT TIME ZONE 'UTC')"

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
        types: Sequence[str] | None = None,
        lock: bool = True,
    ) -> list[Candidate]:
        only, params = ("", []) if types is None else (" AND e.type = ANY(%s)", [list(types)])
        # The limit must be a constant: with a parameter the planner reads and sorts every backlog.
        rows = self.execute(
            "SELECT h.job_id, h.owner_id, h.type, h.attempts, h.max_attempts,"
            " h.rank, h.run_at, h.created_at"
            f" FROM unnest(%s::text[]) WITH ORDINALITY AS o(owner_id, turn) CROSS JOIN LATERAL ("
            f"SELECT e.* FROM {ENTRY} e WHERE e.namespace = %s AND e.queue = %s AND e.due = TRUE"
            f' AND e.owner_id = o.owner_id COLLATE "C"{only}'
            f" ORDER BY e.rank, e.run_at, e.created_at, e.job_id LIMIT {int(each)}"
            f"{self.skip_locked if lock else ''}) h ORDER BY o.turn",
            [list(owners), namespace, queue, *params],
        )
        return [self.candidate(queue, row) for row in rows]

    def take(
        self, takings: Sequence[Taking], *, worker: uuid.UUID, lease: float
    ) -> list[uuid.UUID]:
        claim, start = EDGES["claim"], EDGES["claim_and_start"]
        rows = self.execute(
            "WITH wanted AS MATERIALIZED (SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::bool[],"
            " %s::bool[]) WITH ORDINALITY AS w(job_id, claim_id, starts, repeats, turn)),"
            f" taken AS (DELETE FROM {ENTRY} e USING wanted w WHERE e.job_id = w.job_id AND e.due"
            " RETURNING w.*),"
            f" moved AS (UPDATE {JOB} j SET claim_id = t.claim_id, attempts = j.attempts + 1,"
            f" state = CASE WHEN t.starts THEN '{start.target.value}' ELSE '{claim.target.value}'"
            f" END, updated_at = {self.now},"
            " held_since = CASE WHEN t.starts THEN NULL ELSE j.held_since END,"
            " held_reason = CASE WHEN t.starts THEN '' ELSE j.held_reason END"
            " FROM taken t WHERE j.id = t.job_id"
            f" AND j.state IN {in_states(claim.sources)} RETURNING j.id, j.namespace,"
            " j.owner_id, j.attempts, j.claim_id, j.state, t.starts, t.repeats, t.turn)"
            f" INSERT INTO {EXECUTION} (job_id, namespace, owner_id, attempt, claim_id, worker_id,"
            " state, lease_expires_at, requeue_on_interrupt, claimed_at, started_at, updated_at,"
            " interruption_reason, error, error_code, traceback, resolved_by, resolved_note)"
            " SELECT id, namespace, owner_id, attempts, claim_id, %s, state,"
            f" {self.clock.sql(self.connection, plus=lease)}, repeats, {self.now},"
            f" CASE WHEN starts THEN {self.now} END, {self.now}, '', '', '', '', '', ''"
            " FROM moved ORDER BY turn RETURNING job_id",
            [
                [taking.job_id for taking in takings],
                [taking.claim_id for taking in takings],
                [taking.starts for taking in takings],
                [taking.requeue_on_interrupt for taking in takings],
                worker,
            ],
        )
        return [as_uuid(row[0]) for row in rows]

    def settle_many(self, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        grouped = sorted(
            (outcome for outcome in outcomes if outcome.edge in _GROUPED),
            key=lambda outcome: outcome.job_id,
        )
        if len(grouped) < 2:
            return super().settle_many(outcomes)
        held = super().settle_many([o for o in outcomes if o.edge not in _GROUPED])
        completed, failed = State.COMPLETED.value, State.FAILED.value
        assert {EDGES[edge].target.value for edge in _GROUPED} == {completed, failed}
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
                [outcome.job_id for outcome in grouped],
                [outcome.claim_id for outcome in grouped],
                [EDGES[outcome.edge].target.value for outcome in grouped],
                [outcome.result for outcome in grouped],
                [outcome.error for outcome in grouped],
                [outcome.error_code for outcome in grouped],
                [outcome.traceback for outcome in grouped],
            ],
        )
        return held | {as_uuid(row[0]) for row in rows}
