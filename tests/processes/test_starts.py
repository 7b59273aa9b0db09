"""How a worker starts: what is not there yet, and what stops it before it has begun."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_durable_jobs import enqueue
from tests import databases
from tests.chaos.proxy import Proxy
from tests.processes.harness import WorkerProcess, Workers, states, until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

server = pytest.mark.skipif("connection.vendor == 'sqlite'", reason="a file is there or is not")


def environment(**changes: Any) -> dict[str, str]:
    """Return what has a worker find its database elsewhere."""
    given = json.loads(databases.subprocess_environment()[databases.VARIABLE])
    return {databases.VARIABLE: json.dumps({**given, **changes})}


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:
    """Stand between workers and their server."""
    settings = connection.settings_dict
    port = str(settings["PORT"] or (5432 if connection.vendor == "postgresql" else 3306))
    by_socket = str(settings["HOST"]).startswith("/")
    with Proxy(f"{settings['HOST']}/.s.PGSQL.{port}" if by_socket else port) as proxy:
        yield proxy


def behind(proxy: Proxy) -> dict[str, str]:
    return environment(HOST="127.0.0.1", PORT=str(proxy.port))


# Ctrl-C

JOBS = """
import time
from pathlib import Path
Path({begun!r}).touch()
time.sleep(30)
"""


def test_ctrl_c_while_the_project_is_imported_ends_it_without_a_word(
    workers: Workers, tmp_path: Path
) -> None:
    begun, shop = tmp_path / "begun", tmp_path / "project" / "slow_shop"
    shop.mkdir(parents=True)
    (shop / "__init__.py").touch()
    (shop / "jobs.py").write_text(JOBS.format(begun=str(begun)))
    (shop.parent / "slow_settings.py").write_text(
        "from tests.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'slow_shop']\n"
    )
    path = {"PYTHONPATH": f"{shop.parent}{os.pathsep}{databases.ROOT}"}
    worker = workers.start(environment={"DJANGO_SETTINGS_MODULE": "slow_settings", **path})
    until(begun.exists, "the import")
    worker.signal(signal.SIGINT)
    assert worker.ended(10) == -signal.SIGINT
    assert worker.output == ""


# The database


def waits(worker: WorkerProcess) -> bool:
    return bool(worker.events("unreachable"))


@server
@pytest.mark.parametrize("options", [(), ("--processes=2",)])
def test_a_worker_waits_for_a_database_that_is_away_and_begins_when_it_is_there(
    workers: Workers, proxy: Proxy, options: tuple[str, ...]
) -> None:
    proxy.refuse()
    worker = workers.start(*options, environment=behind(proxy))
    until(lambda: waits(worker) or worker.is_over(), "word of it")
    assert "OperationalError" in until(lambda: worker.events("trouble"), "why")[0]["error"]
    job = enqueue("ledger.work")
    proxy.heal()
    until(lambda: states(job) == ["completed"], "the job")
    assert worker.stop() == 0
    assert "Traceback" not in worker.output


@server
def test_a_worker_that_waits_for_its_database_ends_at_a_signal(
    workers: Workers, proxy: Proxy
) -> None:
    proxy.refuse()
    worker = workers.start(environment=behind(proxy))
    until(lambda: waits(worker), "word of it")
    assert worker.stop() == 0
    assert "Traceback" not in worker.output


@server
def test_a_burst_does_not_wait(workers: Workers, proxy: Proxy) -> None:
    proxy.refuse()
    worker = workers.start("--burst", environment=behind(proxy))
    assert worker.ended() == 1
    assert "The database 'default' cannot be reached: OperationalError" in worker.output


@pytest.mark.parametrize("wrong", ["name", "user"])
def test_a_database_that_will_never_let_it_in_is_not_waited_for(
    workers: Workers, tmp_path: Path, wrong: str
) -> None:
    if connection.vendor == "sqlite":
        wrong_one = environment(NAME=str(tmp_path / "no such folder" / "db.sqlite3"))
    else:
        wrong_one = environment(**{wrong.upper(): "nosuch", "PASSWORD": "wrong"})
    worker = workers.start(environment=wrong_one)
    assert worker.ended() == 1
    assert "CommandError: The database 'default' cannot be reached: " in worker.output
    assert "Traceback" not in worker.output
