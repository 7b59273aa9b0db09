"""Behind PgBouncer in transaction mode: everything works, and nothing is left in its sessions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from django.utils import timezone

from django_durable_jobs import cancel, enqueue, enqueue_many, pause, resume
from django_durable_jobs.db import own_connections
from django_durable_jobs.models import Execution, Job
from tests import databases
from tests.databases import default_database
from tests.processes.harness import Workers, states, until

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
POOL = 3  # sessions, for all workers and this test

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.processes,
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="it pools PostgreSQL only"),
    # Where databases are required, as in CI, so is this.
    pytest.mark.skipif(
        PGBOUNCER is None and "DDJ_REQUIRE" not in os.environ, reason="pgbouncer is not installed"
    ),
]

Settings = dict[str, Any]


@pytest.fixture
def pooled() -> Iterator[Settings]:
    """Run a PgBouncer before the test database, and go through it here; yield its settings."""
    direct = connection.settings_dict
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    to = {"host": direct["HOST"], "port": direct["PORT"] or 5432, "user": direct["USER"]}
    to |= {"password": direct["PASSWORD"]} if direct["PASSWORD"] else {}
    text = (
        "[databases]\n* = " + " ".join(f"{name}={value}" for name, value in to.items()) + "\n"
        "[pgbouncer]\nlisten_addr = 127.0.0.1\nunix_socket_dir =\nauth_type = any\n"
        f"listen_port = {port}\npool_mode = transaction\ndefault_pool_size = {POOL}\n"
    )
    settings = {
        **databases.settings_from_environment(),
        "NAME": direct["NAME"],
        "HOST": "127.0.0.1",
        "PORT": str(port),
        # As Django's documentation wants it behind a pooler.
        "DISABLE_SERVER_SIDE_CURSORS": True,
    }
    with running_pgbouncer(text), default_database(settings):
        until(answers, "PgBouncer")
        yield settings


@contextmanager
def running_pgbouncer(text: str) -> Iterator[None]:
    assert PGBOUNCER is not None
    as_nobody: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
    # Where nobody may read, as whom it runs: it refuses to be root.
    with tempfile.TemporaryDirectory(prefix="ddj-pgbouncer-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "pgbouncer.ini")
        file.write_text(text)
        process = subprocess.Popen(
            [PGBOUNCER, "--quiet", str(file)],
            preexec_fn=databases.die_with_parent(signal.SIGKILL),
            **as_nobody,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def answers() -> bool:
    try:
        connection.ensure_connection()
    except Exception:
        time.sleep(0.05)
        return False
    return True


def left_in_sessions() -> list[dict[str, Any]]:
    """Return what was left in the sessions that the pooler shares out, one after the other."""
    found = {}
    names = ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "jit"]
    names += ["enable_seqscan", "default_transaction_isolation", "search_path"]
    direct = psycopg.connect(
        host=connections.settings["default"]["HOST"],
        port=connections.settings["default"]["PORT"],
        user=connections.settings["default"]["USER"],
        dbname=connections.settings["default"]["NAME"],
        prepare_threshold=None,
        autocommit=True,
    )
    with direct as one:
        for _ in range(50):
            row = one.execute(
                "SELECT pg_backend_pid(),"
                " (SELECT count(*) FROM pg_prepared_statements),"
                " (SELECT count(*) FROM pg_listening_channels()),"
                " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),"
                + ", ".join(f"current_setting('{name}')" for name in names)
            ).fetchone()
            assert row is not None
            found[row[0]] = dict(
                zip(["prepared", "listens", "locks", *names], row[1:], strict=True)
            )
    return list(found.values())


def test_workers_and_enqueues_work_and_leave_nothing_in_the_shared_sessions(
    workers: Workers, pooled: Settings
) -> None:
    fresh = left_in_sessions()[0]
    through = {databases.VARIABLE: json.dumps(pooled)}
    for _ in range(2):
        workers.start("--concurrency=4", environment=through, LISTEN=False)
    for worker in workers.all:
        worker.ready()
    work = {"type": "ledger.work"}
    jobs = [enqueue("ledger.work", {"how": "record"}, idempotency_key=f"{n}") for n in range(40)]
    jobs += enqueue_many([{**work, "owner_id": f"owner-{n % 7}"} for n in range(200)])
    jobs += [enqueue("ledger.await"), enqueue("ledger.asked", {"slow": 0.01})]
    assert not enqueue("ledger.work", {"how": "record"}, idempotency_key="7").created
    pause("elsewhere")
    resume("elsewhere")
    later = enqueue("ledger.work", run_at=timezone.now() + timedelta(hours=1))
    cancel(later.pk)
    until(lambda: set(states(*jobs)) == {"completed"}, "the ends of all jobs")
    assert sorted(workers.started()) == sorted(job.pk for job in jobs)
    assert Execution.objects.exclude(state="completed").count() == 0
    assert Job.objects.get(pk=later.pk).state == "cancelled"
    for worker in workers.all:
        until(lambda w=worker: w.row().healthy, "health")
        assert worker.stop() == 0
    assert workers.trouble() == []
    assert left_in_sessions() == [fresh] * len(left_in_sessions())


def test_no_limit_of_ours_is_said_to_a_session_that_is_everybodys(pooled: Settings) -> None:
    with own_connections("default", lease=30.0) as own, own.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
        )
        assert cursor.fetchone() == ("0", "0")
        assert own.connection.prepare_threshold is None
