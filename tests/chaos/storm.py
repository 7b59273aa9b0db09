"""A storm: jobs are made, cancelled, replaced and run while workers are killed and stopped.

Truth is what the handlers wrote to the ledger and what the producer and the operator were told,
never the tables alone. Everything random comes from one seed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psutil
from django.db import connection, connections, transaction
from django.db.models import Count

from django_durable_jobs import cancel, enqueue, replace_queued
from django_durable_jobs.db import current_clock
from django_durable_jobs.errors import NotQueued
from django_durable_jobs.ids import uuid7
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.states import ACTIVE, LIVE, SETTLED
from tests import ledger
from tests.processes.harness import WorkerProcess, Workers, digest, sqlite_file_is_free

# How long it blows. A minute or more is a trial by hand, on a machine that does nothing else.
SECONDS = float(os.environ.get("DDJ_CHAOS_SECONDS", "10"))
TRIAL = SECONDS >= 60
LEASE, HEARTBEAT = 4.0, 1.0
OWNER_CAP = 2
OWNERS = [f"owner-{number}" for number in range(6)]
# How long after a lease has ended its execution may still be active, with a worker there to see.
SWEEP = HEARTBEAT + (3.0 if TRIAL else 8.0)
# For how long a storm goes on in which nobody was killed or stopped yet.
LONGER = 30.0
# By which faults an interruption is explained.
EXPLAINED = {
    "server_restarted_after_claim": {"kill"},
    "worker_lost": {"kill", "stop", "sessions"},
    "claim_unconfirmed": {"sessions"},
    "scheduler_shutdown": set[str](),  # every handler ends well within the grace
}


@dataclass
class Fault:
    kind: str
    worker: UUID
    at: datetime
    until: datetime | None = None  # when one that was stopped went on


@dataclass
class Storm:
    """One run: ``blow``, then read ``violations`` and ``witnesses``."""

    workers: Workers
    seed: int
    seconds: float
    count: int
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.violations: list[str] = []
        self.witnesses: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.made: dict[UUID, str] = {}  # id: owner
        self.ahead: list[UUID] = []  # those of them that are not due at once
        self.rolled_back: set[UUID] = set()
        self.cancelled: set[UUID] = set()
        self.notes: dict[UUID, Any] = {}
        self.ended: dict[UUID, str] = {}
        self.zombies: list[tuple[Job, tuple[Any, ...]]] = []
        self.stopped: dict[WorkerProcess, float] = {}
        self.healthy: dict[WorkerProcess, float] = {}  # since when
        self.over = threading.Event()  # the time is up
        self.calm = threading.Event()  # no harm is done any more
        self.quiet = threading.Event()  # everything

    # The run

    def blow(self) -> None:
        for _ in range(self.count):
            self._start_worker()
        for worker in list(self.healthy):
            worker.ready()
        makers = self._threads(self._produce, self._operate)
        others = self._threads(self._harm, self._sample)
        time.sleep(self.seconds)
        # A machine that is busy with other things may not have come to it yet.
        late = time.monotonic() + LONGER
        while time.monotonic() < late and not all(
            self.witnesses[kind] for kind in ("kill", "stop")
        ):
            time.sleep(0.1)
        self.over.set()
        for thread in makers:
            thread.join()
        self.calm.wait(30)
        self._heal()
        self.quiet.set()
        for thread in others:
            thread.join()
        self._judge()

    def _threads(self, *parties: Callable[[random.Random], None]) -> list[threading.Thread]:
        threads = []
        for party in parties:
            arguments = [party, f"{self.seed} {party.__name__}"]
            threads.append(threading.Thread(target=self._party, args=arguments))
            threads[-1].start()
        return threads

    def _party(self, party: Callable[[random.Random], None], seed: str) -> None:
        try:
            party(random.Random(seed))
        except Exception as error:
            self.violations.append(f"{party.__name__} was told {type(error).__name__}: {error}")
        finally:
            connections.close_all()

    def _start_worker(self) -> WorkerProcess:
        worker = self.workers.start(
            "--concurrency=4",
            "--grace=20",
            environment=self.environment,
            HEARTBEAT=HEARTBEAT,
            LEASE=LEASE,
            OWNER_CONCURRENCY=OWNER_CAP,
        )
        self.healthy[worker] = time.monotonic()
        return worker

    # Who makes jobs

    def _produce(self, rng: random.Random) -> None:
        repeatable: list[dict[str, Any]] = []
        while not self.over.wait(1 / 15):
            how = rng.choices(["return", "record", "raise", "exit", "too large"], [50, 45, 3, 1, 1])
            values: dict[str, Any] = {
                "payload": {"seconds": round(rng.uniform(0.02, 0.4), 3), "how": how[0], "note": 0},
                "owner_id": rng.choice(OWNERS),
                "id": uuid7(),
            }
            draw = rng.random()
            if draw < 0.10:
                self._roll_back(values)
            elif draw < 0.15 and repeatable:
                self._repeat(rng.choice(repeatable))
            else:
                if draw < 0.35:
                    ahead = timedelta(seconds=rng.uniform(0, 3))
                    values["run_at"] = current_clock().now(connection) + ahead
                else:
                    values["idempotency_key"] = f"key-{len(self.made)}"
                    repeatable.append(values)
                enqueue("ledger.work", **values)
                self.made[values["id"]] = values["owner_id"]
                if "run_at" in values:
                    self.ahead.append(values["id"])

    def _roll_back(self, values: dict[str, Any]) -> None:
        try:
            with transaction.atomic():
                enqueue("ledger.work", **values)
                self.rolled_back.add(values["id"])
                raise LookupError
        except LookupError:
            self.witnesses["rolled back"] += 1

    def _repeat(self, values: dict[str, Any]) -> None:
        if values["id"] in self.notes:
            return  # replaced meanwhile: rightly a conflict
        job = enqueue("ledger.work", **{**values, "id": uuid7()})
        if job.created or job.pk != values["id"]:
            self.violations.append(f"INV-4 a repeated key made another job: {job.pk}")
        self.witnesses["repeated keys"] += 1

    # Who steers them

    def _operate(self, rng: random.Random) -> None:
        number = 0
        while not self.over.wait(0.2):
            number += 1
            recent = list(self.made)[-20:]
            if not recent:
                continue
            # Half of the time one that is likely to wait still: most run as soon as they are made.
            id = rng.choice(self.ahead[-8:] if self.ahead and rng.random() < 0.5 else recent)
            try:
                if number % 5 < 3:
                    cancel(id)
                    self.cancelled.add(id)
                    self.witnesses["cancelled"] += 1
                else:
                    self._replace(id, number, rng)
            except NotQueued as refusal:
                self.witnesses["refused cancels" if number % 5 < 3 else "refused replaces"] += 1
                if refusal.state == "queued":
                    self.violations.append(f"INV-9 refused although queued: {id}")

    def _replace(self, id: UUID, number: int, rng: random.Random) -> None:
        before = self.notes.get(id)
        self.notes[id] = None  # from now on repeating its key would be a conflict
        payload = {"seconds": round(rng.uniform(0.02, 0.4), 3), "note": number}
        try:
            replace_queued(id, payload=payload)
        except NotQueued:
            self.notes[id] = before
            raise
        self.notes[id] = number
        self.witnesses["replaced"] += 1

    # Who does harm

    def _harm(self, rng: random.Random) -> None:
        deck = ["stop", "kill", "sessions", "term"]  # in the shortest storm too
        next_fault = 0.0
        while not self.over.wait(rng.uniform(0.2, 0.4)):
            self._wake_zombies()
            self._replace_dead()
            if time.monotonic() < next_fault:
                continue
            next_fault = time.monotonic() + rng.uniform(1.5, 3.0)
            if not deck:
                deck = ["kill"] * 8 + ["stop"] * 6 + ["term"] * 3 + ["sessions"] * 3
                rng.shuffle(deck)
            kind = deck.pop(0)
            if kind == "sessions" and connection.vendor == "sqlite":
                kind = "term"
            worker = self._victim(rng, wanted=kind != "term")
            if worker is None or not self._strike(kind, worker):
                deck.insert(0, kind)
                next_fault = 0.0
        self.calm.set()
        # The system kills the workers that this thread has started when it ends.
        self.quiet.wait()

    def _victim(self, rng: random.Random, *, wanted: bool) -> WorkerProcess | None:
        """Choose one of the healthy, if another one is left; best one with a job at hand."""
        now = time.monotonic()
        ready = [w for w, since in self.healthy.items() if now - since > 1.5 and not w.is_over()]
        if len(ready) < 2:
            return None
        rng.shuffle(ready)
        deadline = time.monotonic() + 2.0
        while wanted and time.monotonic() < deadline:
            busy = self._busy()
            if found := [worker for worker in ready if worker.pid in busy]:
                return found[0]
            time.sleep(0.02)
        return ready[0]

    def _busy(self) -> set[int]:
        """Return the processes in which a handler runs."""
        lines = self.workers.lines()
        ends = {line.claim for line in ledger.of(lines, "end")}
        return {line.pid for line in ledger.of(lines, "start") if line.claim not in ends}

    def _strike(self, kind: str, worker: WorkerProcess) -> bool:
        """Do this worker harm; False where it is not the moment."""
        if not worker.events("start"):
            return False
        if kind == "stop":
            worker.signal(signal.SIGSTOP)
            # Its handler may have ended just before. And whoever is stopped with SQLite's one write
            # lock holds up everybody, whatever any of us does: that is not this storm's question.
            if worker.pid not in self._busy() or not sqlite_file_is_free():
                worker.signal(signal.SIGCONT)
                return False
        fault = Fault(kind, worker.id, current_clock().now(connection))
        self.faults.append(fault)
        self.witnesses[kind] += 1
        if kind == "kill":
            del self.healthy[worker]
            worker.kill()
        elif kind == "stop":
            del self.healthy[worker]
            self.stopped[worker] = time.monotonic() + LEASE + 2
        elif kind == "term":
            del self.healthy[worker]
            worker.signal(signal.SIGTERM)
        else:
            self._end_sessions(worker)
        return True

    @staticmethod
    def _end_sessions(worker: WorkerProcess) -> None:
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    # Another run of this suite may be on the same server.
                    " WHERE application_name = %s AND datname = current_database()",
                    [worker.log.name],
                )
                return
            ports = {c.laddr.port for c in psutil.Process(worker.pid).net_connections()}
            cursor.execute("SELECT id, host FROM information_schema.processlist")
            for id, host in cursor.fetchall():
                if int(host.rpartition(":")[2] or 0) in ports:
                    cursor.execute(f"KILL {int(id)}")

    def _wake_zombies(self, *, all: bool = False) -> None:
        for worker, due in list(self.stopped.items()):
            if not all and time.monotonic() < due:
                continue
            fault = [f for f in self.faults if f.worker == worker.id and f.kind == "stop"][-1]
            lost = Execution.objects.filter(
                worker_id=worker.id, state="interrupted", interrupted_at__gte=fault.at
            )
            taken = [(e.job, digest(e.job)) for e in lost.select_related("job")]
            self.zombies += taken
            self.witnesses["zombies with a job"] += bool(taken)
            del self.stopped[worker]
            worker.signal(signal.SIGCONT)
            fault.until = current_clock().now(connection)
            self.healthy[worker] = time.monotonic()

    def _replace_dead(self) -> None:
        for worker in self.workers.all:
            if worker.is_over() and not worker.replaced:
                worker.replaced = True
                known = {fault.kind for fault in self.faults if fault.worker == worker.id}
                if not known & {"kill", "term"}:
                    code, end = worker.process.returncode, worker.output[-3_000:]
                    self.violations.append(f"INV-12 a worker ended by itself ({code}): {end}")
                self.healthy.pop(worker, None)
                self._start_worker()

    # Who looks on

    def _sample(self, rng: random.Random) -> None:
        while not self.quiet.wait(0.5):
            held = Execution.objects.filter(state__in=ACTIVE).values("owner_id")
            for row in held.annotate(number=Count("id")).values_list("owner_id", "number"):
                if row[1] > OWNER_CAP:
                    self.violations.append(f"INV-7 {row[1]} active of {row[0]}")
            self._sample_leases()
            self._sample_ends()
            self.witnesses["samples"] += 1

    def _sample_leases(self) -> None:
        # One that has just begun, or has just gone on, does not judge others yet.
        proven = time.monotonic() - LEASE - HEARTBEAT - 3.0
        if not any(since < proven and not w.is_over() for w, since in self.healthy.items()):
            return
        late = current_clock().now(connection) - timedelta(seconds=SWEEP)
        for execution in Execution.objects.filter(state__in=ACTIVE, lease_expires_at__lt=late):
            self.violations.append(f"INV-5 nobody ended {execution.claim_id} of {execution.job_id}")

    def _sample_ends(self) -> None:
        rows = Job.objects.filter(pk__in=list(self.ended) or [uuid7()])
        for id, state in rows.values_list("pk", "state"):
            if state != self.ended[id]:
                self.violations.append(f"INV-2 {id} went from {self.ended[id]} to {state}")
                self.ended[id] = state
        settled = Job.objects.filter(state__in=SETTLED).values_list("pk", "state")
        for id, state in settled:
            self.ended.setdefault(id, state)

    # Afterwards

    def _heal(self) -> None:
        self._wake_zombies(all=True)
        # Two that no harm was done to.
        fresh = [self._start_worker() for _ in range(2)]
        deadline = time.monotonic() + 60
        while Job.objects.filter(state__in=LIVE).exists():
            if time.monotonic() > deadline:
                left = Job.objects.filter(state__in=LIVE).values_list("pk", "state")[:5]
                self.violations.append(f"INV-6 not quiet after 60 s: {list(left)}")
                break
            time.sleep(0.05)
        for worker in fresh:
            worker.ready()
        time.sleep(1.0)  # late writers, if there are any, have had their say
        living = [worker for worker in self.workers.all if not worker.is_over()]
        for worker in living:
            worker.signal(signal.SIGTERM)
        for worker in living:
            try:
                code = worker.ended(30)
            except AssertionError as error:
                self.violations.append(f"INV-10 {error}")
                continue
            if code:
                self.violations.append(f"INV-10 a worker ended with {code}: {worker.output[-500:]}")

    def _judge(self) -> None:
        lines = self.workers.lines()
        starts = Counter(line.job for line in ledger.of(lines, "start"))
        self.violations += [
            f"INV-1 {id} was started {number} times" for id, number in starts.items() if number > 1
        ]
        begun = Execution.objects.filter(started_at__isnull=False).values("job_id")
        for row in begun.annotate(number=Count("id")).filter(number__gt=1):
            self.violations.append(f"INV-1 {row['job_id']} has {row['number']} started executions")
        stored = set(Job.objects.values_list("pk", flat=True))
        self.violations += [f"INV-4 {id} is lost" for id in set(self.made) - stored]
        self.violations += [f"INV-4 {id} came from nowhere" for id in stored - set(self.made)]
        self.violations += [
            f"INV-4 {id} was rolled back and ran" for id in self.rolled_back & {*starts}
        ]
        self.violations += [
            f"INV-9 {id} was cancelled and ran" for id in self.cancelled & {*starts}
        ]
        for job, before in self.zombies:
            if digest(job) != before:
                self.violations.append(f"INV-3 a zombie changed {job.pk}")
        self._judge_notes(lines)
        self._judge_ends(starts, lines)
        self._judge_interruptions()
        lost = [
            e for w in self.workers.all for e in w.events("job") if e["outcome"] == "claim lost"
        ]
        self.witnesses["late settlements refused"] = len(lost)
        self.witnesses["late records refused"] = len(ledger.of(lines, "refused"))
        self.witnesses["started"] = len(starts)
        reasons = Execution.objects.filter(state="interrupted")
        for reason, number in (
            reasons.values_list("interruption_reason").annotate(number=Count("id")).order_by()
        ):
            self.witnesses[reason] = number
        for state, number in (
            Job.objects.values_list("state").annotate(number=Count("id")).order_by("state")
        ):
            self.witnesses[state] = number

    def _judge_notes(self, lines: list[ledger.Line]) -> None:
        for line in ledger.of(lines, "start"):
            wanted = self.notes.get(line.job) or 0
            if line.note != wanted:
                self.violations.append(f"INV-9 {line.job} ran {line.note} in place of {wanted}")

    def _judge_ends(self, starts: Counter[UUID], lines: list[ledger.Line]) -> None:
        ended = {line.job for line in ledger.of(lines, "end")}
        for id, state in Job.objects.values_list("pk", "state"):
            if state in ("completed", "failed") and id not in ended:
                self.violations.append(f"INV-2 {id} is {state} and never ran to its end")
            if state == "cancelled" and id not in self.cancelled:
                self.violations.append(f"INV-9 {id} is cancelled by nobody")

    def _judge_interruptions(self) -> None:
        for execution in Execution.objects.filter(state="interrupted"):
            kinds = EXPLAINED[execution.interruption_reason]
            late = timedelta(seconds=LEASE + SWEEP + 2)
            at = execution.interrupted_at
            assert at is not None
            if not any(
                fault.worker == execution.worker_id
                and fault.kind in kinds
                and fault.at <= at <= (fault.until or fault.at) + late
                for fault in self.faults
            ):
                known = [fault for fault in self.faults if fault.worker == execution.worker_id]
                self.violations.append(
                    f"INV-12 {execution.job_id} was interrupted for nothing at {at:%T.%f}"
                    f" ({execution.interruption_reason}), faults of its worker: {known}"
                )
