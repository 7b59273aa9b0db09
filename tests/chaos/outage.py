"""The database goes away, in one way after the other, and no worker with it.

Three workers reach a server of this test's own through `proxy`; jobs are put in past it. Truth is
the ledger, what the producer was told, and what the proxy has seen of COMMITs and their replies.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psutil
from django.db import Error, connection, connections
from django.db.models import Count

from django_durable_jobs import enqueue, enqueue_many
from django_durable_jobs.ids import uuid7
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.states import LIVE
from tests import databases, ledger
from tests.chaos.proxy import Proxy
from tests.processes.harness import WorkerProcess, Workers, until
from tests.servers import MariaDBServer, PostgresServer, Server

# How long it lasts. A minute or more is a trial by hand, on a machine that does nothing else: only
# then is it judged how soon work goes on and what waiting costs, and only then do leases run out
# on a worker that the database keeps waiting, and on none that the machine does.
SECONDS = float(os.environ.get("DDJ_CHAOS_SECONDS", "12"))
TRIAL = SECONDS >= 60
LEASE, HEARTBEAT = (4.0 if TRIAL else 20.0), 1.0
SLOTS, WORKERS = 4, 3
# How long after the end of an outage every worker has begun another job, in seconds.
RESUMES_IN = 5.0 if TRIAL else 40.0
# Of a processor: what a worker may take while it waits.
IDLE = 0.4 if TRIAL else math.inf
ENDS = ("works again", "claim unconfirmed")
CONNECTIONS = 40  # that the server allows

# What the proxy has seen where a fault came about.
WITNESSED_BY = {
    "claim_reply_dropped": "dropped claim",
    "settle_reply_dropped": "dropped settle",
    "black_hole": "swallowed",
    "cut_off": "reset",
    "refused": "reset",
}

SERVERS: dict[str, type[Server]] = {"postgresql": PostgresServer, "mysql": MariaDBServer}


@dataclass
class Outage:
    """One run: ``last`` for so many seconds, then read ``violations`` and ``witnesses``."""

    workers: Workers
    server: Server
    proxy: Proxy
    seed: int

    violations: list[str] = field(default_factory=list)
    witnesses: Counter[str] = field(default_factory=Counter)
    made: set[UUID] = field(default_factory=set)
    unsure: set[UUID] = field(default_factory=set)  # the producer was told of an error

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.over = threading.Event()
        faults = [
            self.refused,
            self.cut_off,
            self.black_hole,
            self.slow,
            self.claim_reply_dropped,
            self.settle_reply_dropped,
            self.sessions_ended,
            self.restarted,
            self.read_only,
            self.crowded,
            self.locked,
        ]
        self.faults: list[Callable[[], AbstractContextManager[object]]] = faults

    # The run

    def last(self) -> None:
        migrate(self.server)
        self._let_in()
        for _ in range(WORKERS):
            self._start_worker()
        for worker in self.workers.all:
            worker.ready()
        producer = threading.Thread(target=self._produce)
        producer.start()
        try:
            self._go_through_faults()
        finally:
            self.over.set()
            producer.join()
        self._become_quiet()
        if (sessions := self._sessions()) > self.sessions + 1:
            self.violations.append(f"sessions: {self.sessions} became {sessions}")
        self._stop_workers()
        self._judge()

    def _go_through_faults(self) -> None:
        self._resumes("start", time.monotonic_ns())
        # Each has opened then whatever it opens: its scheduler, its scribe, its keeper.
        until(lambda: len({line.pid for line in self.workers.lines("recorded")}) == WORKERS, "all")
        until(lambda: self._sessions() >= 3 * WORKERS, "the first signs of life")
        self.sessions = self._sessions()
        deadline, deck = time.monotonic() + SECONDS, list(self.faults)
        self.rng.shuffle(deck)
        while time.monotonic() < deadline and deck:
            self._strike(deck.pop(0))
            if not deck and TRIAL:
                self._strike(self.long_refused)
                deck = list(self.faults)
                self.rng.shuffle(deck)

    def _start_worker(self) -> None:
        reached = {"HOST": "127.0.0.1", "PORT": str(self.proxy.port), "USER": self._user()}
        self.workers.start(
            f"--concurrency={SLOTS}",
            environment={databases.VARIABLE: json.dumps(self.server.settings | reached)},
            HEARTBEAT=HEARTBEAT,
            LEASE=LEASE,
            POLL_INTERVAL=0.5,
        )

    def _strike(self, fault: Callable[[], AbstractContextManager[object]]) -> None:
        """Do harm for a while; judge how it was borne, and that work goes on afterwards."""
        name = fault.__name__
        print(f"  {name}", flush=True)
        before = {worker: self._told(worker) for worker in self.workers.all}
        began = time.monotonic()
        with fault():
            time.sleep(self.rng.uniform(1.0, 2.0))
            for worker in self.workers.all:
                self._judge_calm(worker, name, before[worker], time.monotonic() - began)
        self.witnesses[name] += 1
        self._resumes(name, time.monotonic_ns())

    @staticmethod
    def _logged(worker: WorkerProcess) -> list[str]:
        """Return what a worker has logged of trouble, without what tells of its end."""
        lines = [line for line in worker.output.splitlines() if not line.startswith("{")]
        return [line for line in lines if not any(text in line for text in ENDS)]

    def _told(self, worker: WorkerProcess) -> tuple[int, int, float]:
        """Return how many lines a worker has logged, how often it told of trouble, its CPU."""
        times = psutil.Process(worker.pid).cpu_times()
        logged, told = len(self._logged(worker)), len(worker.events("trouble"))
        return logged, told, times.user + times.system

    def _judge_calm(
        self, worker: WorkerProcess, fault: str, before: tuple[int, int, float], seconds: float
    ) -> None:
        logged, told, cpu = (b - a for a, b in zip(before, self._told(worker), strict=True))
        most = math.ceil(seconds) + 1
        if logged > most or told > most:
            text = "\n".join(self._logged(worker)[-logged:])
            self.violations.append(f"{fault}: {told} times trouble in {seconds:.1f} s, and {text}")
        if cpu > IDLE * seconds:
            self.violations.append(f"{fault}: {cpu:.1f} s of CPU in {seconds:.1f} s")

    def _resumes(self, after: str, healed: int) -> None:
        """See to it that every worker begins a job soon; there is enough for all."""
        deadline = healed / 1e9 + RESUMES_IN
        jobs = [
            {"type": "ledger.work", "payload": {"seconds": 0.2, "how": "record"}, "id": uuid7()}
            for _ in range(2 * SLOTS * WORKERS)
        ]
        self._put_in(jobs)
        wanted = {worker.pid for worker in self.workers.all}
        while wanted:
            lines = self.workers.lines("start")
            wanted -= {line.pid for line in lines if line.at > healed}
            if time.monotonic() > deadline:
                self.violations.append(f"{after}: {len(wanted)} of {WORKERS} did not resume")
                return
            time.sleep(0.02)
        took = time.monotonic() - healed / 1e9
        self.witnesses["slowest resumption, ms"] = max(
            self.witnesses["slowest resumption, ms"], round(took * 1_000)
        )

    # Who makes jobs

    def _produce(self) -> None:
        rng = random.Random(self.seed)
        while not self.over.wait(1 / 15):
            how = rng.choice(["return", "return", "record"])
            payload = {"seconds": round(rng.uniform(0.02, 0.4), 3), "how": how}
            if rng.random() < 0.05:
                payload["seconds"] = 3.0  # one that most outages are shorter than
            self._put_in([{"type": "ledger.work", "payload": payload, "id": uuid7()}])
        connections.close_all()

    def _put_in(self, jobs: list[dict[str, Any]]) -> None:
        ids = {job["id"] for job in jobs}
        try:
            if len(jobs) == 1:
                enqueue(**jobs[0])
            else:
                enqueue_many(jobs)
        except Error:
            self.unsure |= ids
            with contextlib.suppress(Exception):
                connection.close()
            if len(jobs) > 1:
                time.sleep(0.1)
                self._put_in([{**job, "id": uuid7()} for job in jobs])
        else:
            self.made |= ids

    # What is done to the database

    @contextmanager
    def refused(self) -> Iterator[None]:
        self.proxy.refuse()
        yield
        self.proxy.heal()

    @contextmanager
    def long_refused(self) -> Iterator[None]:
        """Every lease runs out."""
        self.proxy.refuse()
        time.sleep(LEASE + 1)
        yield
        self.proxy.heal()

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        self.proxy.reset()
        yield

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        self.proxy.swallow()
        yield
        self.proxy.heal()

    @contextmanager
    def slow(self) -> Iterator[None]:
        self.proxy.delay(0.1)
        yield
        self.proxy.heal()

    @contextmanager
    def claim_reply_dropped(self) -> Iterator[None]:
        self.proxy.drop_reply("claim")
        yield

    @contextmanager
    def settle_reply_dropped(self) -> Iterator[None]:
        self.proxy.drop_reply("settle")
        yield

    @contextmanager
    def sessions_ended(self) -> Iterator[None]:
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name LIKE 'worker-%%'",
                    [],
                )
            else:
                cursor.execute("SELECT id FROM information_schema.processlist WHERE user='worker'")
                for (id,) in cursor.fetchall():
                    with contextlib.suppress(Error):
                        cursor.execute(f"KILL {int(id)}")
        yield

    @contextmanager
    def restarted(self) -> Iterator[None]:
        self.server.stop()
        yield
        connection.close()
        self.server.start(self._most_connections())

    @contextmanager
    def read_only(self) -> Iterator[None]:
        if connection.vendor == "postgresql":
            on = ["ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"]
            off = [
                "SET default_transaction_read_only = off",
                "ALTER SYSTEM RESET default_transaction_read_only",
                "SELECT pg_reload_conf()",
            ]
        else:
            on, off = ["SET GLOBAL read_only = 1"], ["SET GLOBAL read_only = 0"]
        self._run(on)
        yield
        self._run(off)
        connection.close()

    @contextmanager
    def crowded(self) -> Iterator[None]:
        """All connections are taken, by others, while the workers look for new ones."""
        crowd = []
        try:
            for reset in (False, True):
                if reset:
                    self.proxy.reset()
                with contextlib.suppress(Error):
                    while True:
                        as_worker = {**connection.settings_dict, "USER": self._user()}
                        crowd.append(type(connections["default"])(as_worker, "default"))
                        crowd[-1].ensure_connection()
            yield
        finally:
            for one in crowd:
                one.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Somebody holds a lock on a table that every turn needs."""
        holder = connections.create_connection("default")
        with holder.cursor() as cursor:
            if holder.vendor == "postgresql":
                cursor.execute("BEGIN")
                cursor.execute("LOCK TABLE django_durable_jobs_execution")
            else:
                cursor.execute("LOCK TABLES django_durable_jobs_execution WRITE")
        yield
        holder.close()

    # The server

    def _user(self) -> str:
        """Return as whom the workers come: on MariaDB the administrator may write to the last."""
        return "worker" if connection.vendor == "mysql" else str(self.server.settings["USER"])

    def _let_in(self) -> None:
        if connection.vendor == "mysql":
            self._run(
                [
                    "CREATE USER worker@localhost",
                    "GRANT ALL ON ddj.* TO worker@localhost",
                ]
            )

    @staticmethod
    def _most_connections() -> str:
        return f"--max_connections={CONNECTIONS}"

    @staticmethod
    def _run(statements: list[str]) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _sessions(self) -> int:
        """Return how many connections the workers have."""
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(
                    "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name LIKE 'worker-%%'",
                    [],
                )
            else:
                cursor.execute(
                    "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'worker'"
                )
            return int(cursor.fetchone()[0])

    # Afterwards

    def _become_quiet(self) -> None:
        deadline = time.monotonic() + RESUMES_IN + 25
        while left := list(Job.objects.filter(state__in=LIVE).values_list("pk", "state")[:5]):
            if time.monotonic() > deadline:
                self.violations.append(f"INV-6 not quiet: {left}")
                return
            time.sleep(0.05)
        for worker in self.workers.all:
            try:
                until(
                    lambda w=worker: w.row().healthy and not w.row().error,
                    "health",
                    seconds=RESUMES_IN,
                )
            except AssertionError:
                self.violations.append(f"not healthy again: {worker.row().error}")

    def _stop_workers(self) -> None:
        for worker in self.workers.all:
            if worker.is_over():
                self.violations.append(f"INV-12 a worker has ended: {worker.output[-3_000:]}")
            elif worker.stop():
                self.violations.append(f"INV-10 a worker ended badly: {worker.output[-1_000:]}")

    def _judge(self) -> None:
        lines = self.workers.lines()
        starts = Counter(line.job for line in ledger.of(lines, "start"))
        self.violations += [
            f"INV-1 {id} was started {number} times" for id, number in starts.items() if number > 1
        ]
        stored = set(Job.objects.values_list("pk", flat=True))
        self.violations += [f"INV-4 {id} is lost" for id in self.made - stored]
        self.violations += [
            f"INV-4 {id} came from nowhere" for id in stored - self.made - self.unsure
        ]
        ran = {line.claim for line in ledger.of(lines, "start")}
        self.violations += [
            f"INV-2 {execution.job_id} is {execution.state}"
            f" ({execution.error or execution.interruption_reason}),"
            f" its handler was {'called' if execution.claim_id in ran else 'not called'}"
            for execution in Execution.objects.exclude(state__in=["completed", "released"])
            if execution.state != "interrupted"
            or execution.interruption_reason != "claim_unconfirmed"
            or execution.claim_id in ran
        ]
        seen = self.proxy.witnessed
        self.witnesses += seen
        # A claim takes several jobs in one statement: they have one time in common.
        unconfirmed = Execution.objects.filter(state="interrupted").values(
            "worker_id", "claimed_at"
        )
        self.witnesses["claim_unconfirmed"] = sum(
            row["number"] for row in unconfirmed.annotate(number=Count("id"))
        )
        claims = unconfirmed.distinct().count()
        if claims > seen["lost claim"]:
            self.violations.append(
                f"INV-12 {claims} claims were interrupted, {seen['lost claim']} replies were lost"
            )
        for fault, wanted in WITNESSED_BY.items():
            if self.witnesses[fault] and seen[wanted] < self.witnesses[fault]:
                self.violations.append(f"{fault} was not observed")
        self.witnesses["started"] = len(starts)
        self.witnesses["errors that the producer was told"] = len(self.unsure)


def migrate(server: Server) -> None:
    """Make the tables on a server of the test's own."""
    environment = databases.subprocess_environment() | {
        databases.VARIABLE: json.dumps(server.settings)
    }
    command = [sys.executable, "-m", "django", "migrate", "--run-syncdb", "--verbosity=0"]
    subprocess.run(command, env=environment, check=True, cwd=databases.ROOT)
