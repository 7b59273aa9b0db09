"""What do the admin's pages cost with millions of jobs? None may take longer than a person notices.

    python benchmarks/admin_at_size.py [--jobs 5000000] [--keep] [--plans] [--only WORD]

Fills a database of PostgreSQL's by SQL, then asks for each page and filter as a browser would, and
prints its statements, its milliseconds (the first time, and the fastest of three) and the slowest
statement of it. Exits with 1 where a page takes more statements than it should, or longer than
200 ms. ``--keep`` leaves the filled database, and finds it again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import databases  # noqa: E402

NAME = "ddj_at_size"
STEP = 500_000
MOST_MS = 200
MOST_STATEMENTS = 20

# An id that grows with the time at which the job was made, as those of our own do.
ID = "(lpad(to_hex(n.i), 12, '0') || '70008000' || lpad(to_hex(n.i), 12, '0'))::uuid"
# Of a thousand jobs. What is still to be done is among the newest.
STATE = """CASE
  WHEN n.i > {newest} - 20 THEN 'running'
  WHEN n.i > {newest} - {newest} / 20 THEN 'queued'
  WHEN n.i %% 5003 = 0 THEN 'interrupted'
  WHEN n.i %% 67 = 0 THEN 'failed'
  WHEN n.i %% 211 = 0 THEN 'cancelled'
  ELSE 'completed' END"""
JOBS = f"""
INSERT INTO django_durable_jobs_job (id, namespace, queue, type, idempotency_key, key_hash,
  key_scope, owner_id, project_id, target, target_kind, target_id, payload, meta, fingerprint,
  priority, run_at, claimable_at, held_reason, state, claim_id, attempts, created_at, updated_at,
  finished_at)
SELECT id, CASE WHEN i %% 50 = 0 THEN 'other' ELSE 'default' END,
  CASE WHEN i < 1000 THEN 'rare' WHEN i %% 10 = 0 THEN 'mail' ELSE 'default' END,
  CASE WHEN i < 1000 THEN 'rare.type' ELSE 'shop.type' || i %% 20 END,
  'key-' || i, encode(sha256(('key-' || i)::bytea), 'hex'), 'ever',
  CASE WHEN i < 1000 THEN 'early' WHEN i %% 3 = 0 THEN 'giant' ELSE 'owner-' || i %% 10007 END,
  'default', jsonb_build_object('kind', 'order', 'id', i::text), 'order', i::text,
  jsonb_build_object('order', i, 'note', repeat('x', 100)), '{{{{}}}}', 'fingerprint', 0, at, at,
  '', state, CASE WHEN state IN ('queued', 'cancelled') THEN NULL ELSE id END,
  CASE WHEN state IN ('queued', 'cancelled') THEN 0 ELSE 1 END, at, at,
  CASE WHEN state IN ('queued', 'running') THEN NULL ELSE at END
FROM (SELECT n.i, {ID} AS id, {STATE} AS state,
  now() - ({{newest}} - n.i) * interval '1 second' AS at
  FROM generate_series({{low}}, {{high}}) AS n(i)) AS made"""
ENTRIES = """
INSERT INTO django_durable_jobs_queueentry (job_id, namespace, queue, due, owner_id, rank, run_at,
  created_at, claimable_at, type, attempts, max_attempts)
SELECT id, namespace, queue, TRUE, owner_id, 0, run_at, created_at, claimable_at, type, 0, NULL
FROM django_durable_jobs_job WHERE state = 'queued'"""
EXECUTIONS = """
INSERT INTO django_durable_jobs_execution (job_id, namespace, owner_id, attempt, claim_id,
  worker_id, state, lease_expires_at, requeue_on_interrupt, claimed_at, started_at, completed_at,
  failed_at, interrupted_at, updated_at, interruption_reason, error, error_code, traceback,
  resolved_by, resolved_note)
SELECT id, namespace, owner_id, 1, claim_id,
  md5((row_number() OVER (ORDER BY id) / 100000)::text)::uuid, state, created_at,
  FALSE, created_at, created_at,
  CASE state WHEN 'completed' THEN finished_at END, CASE state WHEN 'failed' THEN finished_at END,
  CASE state WHEN 'interrupted' THEN finished_at END, updated_at,
  CASE state WHEN 'interrupted' THEN 'scheduler_shutdown' ELSE '' END,
  CASE state WHEN 'failed' THEN 'ValueError: no' ELSE '' END, '', '', '', ''
FROM django_durable_jobs_job WHERE claim_id IS NOT NULL ORDER BY id"""
WORKERS = """
INSERT INTO django_durable_jobs_worker (id, namespace, host, pid, boot_id, pid_namespace,
  process_start, started_at, heartbeat_at, state, healthy, error, excluded_queues, types,
  concurrency, active, stuck, version)
SELECT worker_id, 'default', 'host', count(*), '', '', '', min(claimed_at), max(claimed_at),
  'lost', TRUE, '', '[]', '[]', 10, 0, 0, ''
FROM django_durable_jobs_execution GROUP BY worker_id"""
NAMESPACES = """
INSERT INTO django_durable_jobs_namespace (name, turn_after, paused_by, paused_reason)
VALUES ('default', '', '', ''), ('other', '', '', '') ON CONFLICT DO NOTHING"""


class Page(NamedTuple):
    """What was asked for, and what it came to."""

    name: str
    url: str
    statements: int
    first: float
    best: float
    rows: int
    slowest: tuple[float, str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000_000)
    parser.add_argument("--keep", action="store_true", help="leave the database, and use it again")
    parser.add_argument("--plans", action="store_true", help="print the slowest statement of each")
    parser.add_argument("--only", default="", help="only pages that have this in their name")
    options = parser.parse_args()
    if databases.VARIABLE in os.environ:
        return measure(options)
    with databases.OPENERS["postgres"]() as database:
        print(database.version, flush=True)
        settings = database.settings | {"TEST": {"NAME": NAME}}
        environment = os.environ | {
            databases.VARIABLE: json.dumps(settings),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }
        return subprocess.call([sys.executable, __file__, *sys.argv[1:]], env=environment)


def measure(options: argparse.Namespace) -> int:
    import django

    django.setup()
    from django.db import connection

    connection.creation.create_test_db(
        verbosity=0, autoclobber=True, serialize=False, keepdb=options.keep
    )
    try:
        fill(options.jobs)
        found = list(pages(options.only))
        return int(any(each.statements > MOST_STATEMENTS or each.best > MOST_MS for each in found))
    finally:
        name = connection.settings_dict["NAME"]
        connection.creation.destroy_test_db(name, verbosity=0, keepdb=options.keep)


def fill(newest: int) -> None:
    from django.db import connection

    from django_durable_jobs.models import Job

    if Job.objects.exists():
        return
    started = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        for low in range(1, newest + 1, STEP):
            bounds = {"low": low, "high": min(low + STEP - 1, newest), "newest": newest}
            cursor.execute(JOBS.format(**bounds).replace("%%", "%"))
        for sql in (ENTRIES, EXECUTIONS, WORKERS, NAMESPACES, "VACUUM ANALYZE"):
            cursor.execute(sql)
    print(f"filled in {time.monotonic() - started:.0f} s", flush=True)


def addresses() -> Iterator[tuple[str, str]]:
    """Yield (name, address) of each page, with the filters and searches that could be slow."""
    from django.urls import reverse

    from django_durable_jobs.models import Execution, Job, Worker

    def listed(model: str) -> str:
        return reverse(f"admin:django_durable_jobs_{model}_changelist")

    def paged(row: Any) -> str:
        return reverse(f"admin:django_durable_jobs_{row._meta.model_name}_change", args=[row.pk])

    jobs, executions, workers = listed("job"), listed("execution"), listed("worker")
    newest, oldest = Job.objects.order_by("-pk"), Job.objects.order_by("pk")
    interrupted = Execution.objects.filter(namespace="default", state="interrupted").first()
    assert interrupted is not None
    yield "index", reverse("admin:index")
    yield "app index", reverse("admin:app_list", args=["django_durable_jobs"])
    yield "jobs", jobs
    yield "jobs, page 200", f"{jobs}?p=200"
    for state in ("queued", "running", "completed", "failed", "interrupted", "cancelled"):
        yield f"jobs, state {state}", f"{jobs}?state__exact={state}"
    for kind in ("shop.type1", "rare.type", "none"):
        yield f"jobs, type {kind}", f"{jobs}?type={kind}"
        for state in ("queued", "failed", "interrupted"):
            yield f"jobs, {kind} {state}", f"{jobs}?type={kind}&state__exact={state}"
    for queue in ("mail", "rare"):
        yield f"jobs, queue {queue}", f"{jobs}?queue={queue}"
    yield "jobs, namespace", f"{jobs}?namespace=other"
    yield (
        "jobs, all filters",
        (f"{jobs}?namespace=other&queue=mail&type=rare.type&state__exact=cancelled"),
    )
    yield "jobs, by worker", f"{jobs}?interrupted_by={interrupted.worker_id}"
    yield "jobs, interrupted because", f"{jobs}?interrupted_because=scheduler_shutdown"
    yield "jobs, interrupted since", f"{jobs}?interrupted_within=1d"
    for term in ("giant", "owner-77", "early", "nobody", "key-4000000", "order:3000000", "77"):
        yield f"jobs, search {term}", f"{jobs}?q={term}"
    yield "jobs, search id", f"{jobs}?q={newest[1000].pk}"
    yield "jobs, owner and state", f"{jobs}?q=giant&state__exact=failed"
    yield "job, oldest", paged(oldest[0])
    yield "job, interrupted", paged(interrupted.job)
    yield "executions", executions
    yield "executions, page 200", f"{executions}?p=200"
    for state in ("running", "completed", "failed", "interrupted", "released"):
        yield f"executions, {state}", f"{executions}?state__exact={state}"
    yield "executions, namespace", f"{executions}?namespace=other"
    yield "executions, both", f"{executions}?namespace=other&state__exact=failed"
    yield "executions, search job", f"{executions}?q={interrupted.job_id}"
    yield "execution", paged(interrupted)
    yield "workers", workers
    yield "worker", paged(Worker.objects.get(pk=interrupted.worker_id))
    for model in ("schedule", "tickclaim", "tickgap", "loop"):
        yield f"{model}s", listed(model)


def pages(only: str) -> Iterator[Page]:
    from django.contrib.auth.models import User
    from django.test import Client

    user, _made = User.objects.get_or_create(
        username="bench", defaults={"is_staff": True, "is_superuser": True}
    )
    client = Client()
    client.force_login(user)
    print(f"{'page':28} {'statements':>10} {'first ms':>9} {'best ms':>8} {'rows':>5}  slowest")
    for name, url in addresses():
        if only in name:
            page = ask(client, name, url)
            took, sql, params = page.slowest
            told = f"{page.statements:10} {page.first:9.0f} {page.best:8.0f} {page.rows:5}"
            mark = " SLOW" if page.best > MOST_MS else ""
            print(f"{name:28} {told}  {took:.0f} ms: {nodes(sql, params)}{mark}", flush=True)
            if sys.argv.count("--plans"):
                print(f"    {sql[:2000]}\n    {params}")
            yield page


def ask(client: Any, name: str, url: str) -> Page:
    from django.db import connection

    seen: list[tuple[float, str, Any]] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        begun = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            seen.append(((time.perf_counter() - begun) * 1e3, sql, params))

    times = []
    for _round in range(4):
        seen.clear()
        begun = time.perf_counter()
        with connection.execute_wrapper(watch):
            response = client.get(url)
        times.append((time.perf_counter() - begun) * 1e3)
        assert response.status_code == 200, (name, response.status_code, response.headers)
    rows = response.content.count(b'<th class="field-')
    slowest = max(seen, key=lambda each: each[0])
    return Page(name, url, len(seen), times[0], min(times[1:]), rows, slowest)


def nodes(sql: str, params: Any) -> str:
    """Return the plan of a statement in a line: its nodes, outermost first."""
    from django.db import connection

    if not sql.startswith("SELECT"):
        return sql.split("(")[0][:40]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
        (plan,) = cursor.fetchone()
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return " < ".join(_names(plan[0]["Plan"]))


def _names(plan: dict[str, Any]) -> Iterator[str]:
    where = plan.get("Index Name") or plan.get("Relation Name")
    yield (
        f"{plan['Node Type']} {where.removeprefix('django_durable_jobs_')}"
        if where
        else plan["Node Type"]
    )
    for each in plan.get("Plans", []):
        yield from _names(each)


if __name__ == "__main__":
    raise SystemExit(main())
