"""Projects that configure their connections in their own way: workers and enqueues work in each."""

from __future__ import annotations

import json
import random
import threading
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections

from django_durable_jobs import cancel, enqueue, enqueue_many, pause, replace_queued, resume
from django_durable_jobs.models import Execution, Job, Leader
from tests import databases
from tests.databases import default_database
from tests.processes.harness import WorkerProcess, Workers, until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.processes,
    pytest.mark.skipif("connection.vendor == 'sqlite'", reason="one level, one file, no pool"),
]

SERIALIZABLE_BY_DEFAULT = "-c default_transaction_isolation=serializable"
ON_POSTGRES: dict[str, dict[str, Any]] = {
    "connections that stay open": {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True},
    "a transaction for each request": {"ATOMIC_REQUESTS": True},
    "a pool": {"OPTIONS": {"pool": {"min_size": 1, "max_size": 8}}},
    "repeatable read": {"OPTIONS": {"isolation_level": 3}},
    "serializable": {"OPTIONS": {"isolation_level": 4}},
    "a serializable server": {"OPTIONS": {"options": SERIALIZABLE_BY_DEFAULT}},
    "server-side binding": {"OPTIONS": {"server_side_binding": True, "prepare_threshold": 1}},
}
ON_MYSQL: dict[str, dict[str, Any]] = {
    "connections that stay open": {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True},
    "a transaction for each request": {"ATOMIC_REQUESTS": True},
    "repeatable read": {"OPTIONS": {"isolation_level": "repeatable read"}},
    "serializable": {"OPTIONS": {"isolation_level": "serializable"}},
    "a serializable server": {
        "OPTIONS": {
            "isolation_level": None,
            "init_command": "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        }
    },
}
THREADS, KEYS = 4, 15


def put_in(seed: int, errors: list[Exception]) -> None:
    """Do what a busy site does: the same keys as others at the same time, and steering."""
    rng = random.Random(seed)
    try:
        for key in rng.sample(range(KEYS), KEYS):
            enqueue("ledger.work", {"seconds": 0.01}, idempotency_key=f"key-{key}")
        enqueue_many([{"type": "ledger.work", "owner_id": f"owner-{n}"} for n in range(10)])
        waits = enqueue("ledger.work", queue="nobody's")
        replace_queued(waits.pk, payload={"seconds": 0.02})
        cancel(waits.pk)
        pause("elsewhere")
        resume("elsewhere")
    except Exception as error:
        errors.append(error)
    finally:
        connections.close_all()


def work_in(workers: Workers, settings: dict[str, Any], **environment: str) -> None:
    """Have two workers and some threads do their work, each thing once."""
    environment = {databases.VARIABLE: json.dumps(settings), **environment}
    for _ in range(2):
        workers.start("--concurrency=4", environment=environment)
    errors: list[Exception] = []
    threads = [threading.Thread(target=put_in, args=[n, errors]) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    asked = enqueue("ledger.asked", {"slow": 0.01})
    wanted = KEYS + 10 * THREADS + 1
    until(lambda: Job.objects.filter(state="completed").count() == wanted, "the ends of all jobs")
    ran: list[UUID] = workers.started()
    assert len(ran) == len(set(ran)) == wanted
    assert asked.pk in ran
    assert not Execution.objects.exclude(state="completed").exists()
    for worker in workers.all:
        assert worker.ready().row().healthy
        assert worker.stop() == 0
    assert workers.trouble() == []


@pytest.mark.parametrize("project", sorted({*ON_POSTGRES, *ON_MYSQL}))
def test_workers_and_enqueues_work_in_a_project_with(workers: Workers, project: str) -> None:
    projects = ON_POSTGRES if connection.vendor == "postgresql" else ON_MYSQL
    if project not in projects:
        pytest.skip("the other server's way to set up a project")
    chosen = projects[project]
    now = databases.settings_from_environment() | {"NAME": connection.settings_dict["NAME"]}
    settings = now | chosen | {"OPTIONS": now.get("OPTIONS", {}) | chosen.get("OPTIONS", {})}
    settings.pop("TEST", None)
    with default_database(settings):
        try:
            work_in(workers, settings)
        finally:
            connection.close()
            if connection.vendor == "postgresql":
                connection.close_pool()


def test_workers_read_where_they_write_whatever_the_projects_router_says(
    workers: Workers,
) -> None:
    now = databases.settings_from_environment() | {"NAME": connection.settings_dict["NAME"]}
    work_in(workers, now, DJANGO_SETTINGS_MODULE="tests.hostile")


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="names its sessions")
def test_an_idle_worker_has_no_more_connections_than_the_docs_tell(workers: Workers) -> None:
    leader = workers.start().ready()
    until(lambda: Leader.objects.filter(worker=leader.id).exists(), "its lead")
    assert idle_sessions(leader, at_most=3) == 3
    assert idle_sessions(workers.start().ready(), at_most=2) == 2


def idle_sessions(worker: WorkerProcess, *, at_most: int) -> int:
    """Return how many sessions a worker has, once those of its start have ended."""
    until(lambda: worker.row().heartbeat_at > worker.row().started_at, "the first heartbeat")

    def sessions() -> int:
        sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = %s"
        with connection.cursor() as cursor:
            cursor.execute(sql, [worker.log.name])
            return int(cursor.fetchone()[0])

    # They end a moment later, for the server.
    until(lambda: sessions() <= at_most, f"{at_most} sessions only")
    return sessions()
