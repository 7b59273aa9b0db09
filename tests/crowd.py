"""Fill the tables by SQL, as full as a test or a benchmark wants them, in seconds."""

from __future__ import annotations

from typing import Any

from django.db import connection

JOB = "django_durable_jobs_job"
ENTRY = "django_durable_jobs_queueentry"
EXECUTION = "django_durable_jobs_execution"
TABLES = (ENTRY, EXECUTION, JOB)

# SQL that differs between databases: a table of the numbers from {low} to {high} as n.i, an id
# that grows with them, an owner's name, an instant some seconds from now, zero-padded numbers.
_DIALECTS: dict[str, dict[str, str]] = {
    "postgresql": {
        "numbers": "generate_series({low}, {high}) AS n(i)",
        "id": "(lpad(to_hex(n.i), 8, '0') || '-0000-7000-8000-' || lpad(to_hex(n.i), 12, '0'))"
        "::uuid",
        "padded": "lpad(({number})::text, 8, '0')",
        "text": "{a} || {b}",
        "time": "now() + {seconds} * interval '1 second'",
        "json": "'{value}'::jsonb",
    },
    "mysql": {
        # A derived table without a limit of its own that MySQL would need raised.
        "numbers": "(SELECT seq AS i FROM seq_{low}_to_{high}) n",
        "id": "concat(lpad(hex(n.i), 8, '0'), '-0000-7000-8000-', lpad(hex(n.i), 12, '0'))",
        "padded": "lpad({number}, 8, '0')",
        "text": "concat({a}, {b})",
        "time": "utc_timestamp(6) + interval {seconds} second",
        "json": "'{value}'",
    },
    "sqlite": {
        "numbers": "(WITH RECURSIVE s(i) AS (SELECT {low} UNION ALL SELECT i + 1 FROM s WHERE i <"
        " {high}) SELECT i FROM s) n",
        "id": "printf('%%08x00007000800%%013x', n.i, n.i)",
        "padded": "printf('%%08d', {number})",
        "text": "{a} || {b}",
        "time": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', ({seconds}) || ' seconds') || '000'",
        "json": "'{value}'",
    },
}


def execute(sql: str, params: list[Any] | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params or [])


def add_jobs(
    count: int,
    *,
    owners: int,
    state: str = "queued",
    seconds: int = -60,
    low: int,
    type: str = "test.job",
    queue: str = "default",
) -> None:
    """Add ``count`` jobs of ``owners`` owners, numbered from ``low``, due ``seconds`` from now.

    Finished ones get an execution each, queued ones an entry.
    """
    say = _DIALECTS[connection.vendor]
    high = low + count - 1
    owner = say["text"].format(
        a="'owner-'", b=say["padded"].format(number=f"n.i %% {owners}" if owners > 1 else "0")
    )
    time, now = say["time"].format(seconds=seconds), say["time"].format(seconds=0)
    empty = say["json"].format(value="{}")
    target = say["json"].format(value='{"kind": "job", "id": "test"}')
    claim, ended = (say["id"], now) if state == "completed" else ("NULL", "NULL")
    execute(
        f"INSERT INTO {JOB} (id, namespace, queue, type, idempotency_key, key_hash, key_scope,"
        " owner_id, project_id, target, target_kind, target_id, payload, meta, fingerprint,"
        " priority, run_at, claimable_at, held_since, held_reason, state, claim_id, attempts,"
        " created_at, updated_at, finished_at)"
        f" SELECT {say['id']}, 'default', '{queue}', '{type}', 'key', NULL, 'ever', {owner},"
        f" 'default', {target}, 'job', 'test', {empty}, {empty}, 'fingerprint', 0, {time}, {time},"
        f" NULL, '', '{state}', {claim}, {1 if state == 'completed' else 0}, {now}, {now}, {ended}"
        f" FROM {say['numbers'].format(low=low, high=high)}"
    )
    first, last = (say["id"].replace("n.i", str(number)) for number in (low, high))
    if state == "queued":
        due = "TRUE" if seconds <= 0 else "FALSE"
        execute(
            f"INSERT INTO {ENTRY} (job_id, namespace, queue, due, owner_id, {quoted('rank')},"
            " run_at, created_at, claimable_at, type, attempts, max_attempts)"
            f" SELECT id, namespace, queue, {due}, owner_id, -priority, run_at, created_at,"
            f" claimable_at, type, attempts, max_attempts FROM {JOB}"
            f" WHERE id BETWEEN {first} AND {last}"
        )
    elif state == "completed":
        execute(
            f"INSERT INTO {EXECUTION} (job_id, namespace, owner_id, attempt, claim_id, worker_id,"
            " state, lease_expires_at, requeue_on_interrupt, claimed_at, started_at, completed_at,"
            " updated_at, interruption_reason, error, error_code, traceback, resolved_by,"
            " resolved_note)"
            " SELECT id, namespace, owner_id, 1, claim_id, claim_id, 'completed', finished_at,"
            " FALSE, created_at, created_at, finished_at, finished_at, '', '', '', '', '', ''"
            f" FROM {JOB} WHERE id BETWEEN {first} AND {last}"
        )


def quoted(name: str) -> str:
    return connection.ops.quote_name(name)


def analyze() -> None:
    """Let the database take its statistics."""
    for table in TABLES:
        if connection.vendor == "mysql":
            execute(f"ANALYZE TABLE {table}")
        else:
            execute(f"ANALYZE {table}")


def empty() -> None:
    """Empty the tables."""
    for table in TABLES:
        execute(f"DELETE FROM {table}" if connection.vendor == "sqlite" else f"TRUNCATE {table}")
