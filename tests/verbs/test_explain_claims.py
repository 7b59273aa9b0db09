"""What `explain` says is in the way is in the way: no claim takes a job that it says is held up.

Situations are made by hypothesis out of all that a claim looks at. A claim of each live worker that
takes a job finds that the job was said to be ready; and where one alone was said to be, some live
worker's claim takes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.transaction import atomic, set_rollback
from django.test import override_settings
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from django_durable_jobs import explain, pause
from django_durable_jobs.claims import NEVER, ClaimRequest, claim
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.explaining import READY
from django_durable_jobs.ids import uuid7
from django_durable_jobs.models import Execution, Job, Namespace, Worker
from django_durable_jobs.states import HeldReason, State
from tests.factories import make_entry, make_execution, make_job, make_worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

NOW = datetime(2031, 1, 1, 12, tzinfo=UTC)
LEASE = 30
TYPES = ("plain", "gated", "rare")
OWNERS = ("", "a", "a", "b", "c")
QUEUES = ("default", "mail", "slow")


@dataclass(frozen=True)
class Wanted:
    """A job to be made: when it may run, seconds from now, and whether its entry says that it is
    due already.
    """

    type: str
    owner: str
    queue: str
    priority: int
    seconds: float
    held: str
    state: str
    promoted: bool


@dataclass(frozen=True)
class Hand:
    """A worker to be made."""

    types: tuple[str, ...]
    queues: tuple[str, ...] | None
    excluded: tuple[str, ...]
    concurrency: int
    state: str
    silent: float


JOBS = st.builds(
    Wanted,
    type=st.sampled_from(TYPES),
    owner=st.sampled_from(OWNERS),
    queue=st.sampled_from(["default", *QUEUES]),
    priority=st.integers(-1, 1),
    seconds=st.sampled_from([-60] * 12 + [-600, 0, 0.001, 60]),
    held=st.sampled_from([""] * 9 + HeldReason.values),
    state=st.sampled_from([State.QUEUED] * 5 + [State.CLAIMED, State.RUNNING]),
    promoted=st.booleans(),
)
HANDS = st.builds(
    Hand,
    types=st.sampled_from([TYPES] * 4 + [("plain",), ("gated", "rare"), ("rare",)]),
    queues=st.sampled_from([None] * 5 + [("default",), ("mail", "slow"), ()]),
    excluded=st.sampled_from([()] * 5 + [("default",), ("mail", "slow")]),
    concurrency=st.integers(1, 5),
    state=st.sampled_from(["running"] * 9 + ["draining"]),
    silent=st.sampled_from([0] * 9 + [5, LEASE, LEASE + 1]),
)
CAPS = st.fixed_dictionaries(
    {
        "OWNER_CONCURRENCY": st.integers(1, 3),
        "GLOBAL_CONCURRENCY": st.sampled_from([None] * 5 + [1, 3, 5]),
        "UNCAPPED_OWNERS": st.sampled_from([["", "local-user"], ["a"], []]),
    }
)


@contextmanager
def undone() -> Iterator[None]:
    with atomic():
        yield
        set_rollback(True)


def add_worker(hand: Hand) -> Worker:
    return make_worker(
        types=list(hand.types),
        queues=None if hand.queues is None else list(hand.queues),
        excluded_queues=list(hand.excluded),
        concurrency=hand.concurrency,
        state=hand.state,
        heartbeat_at=NOW - timedelta(seconds=hand.silent),
    )


def add_job(wanted: Wanted, number: int, workers: list[Worker]) -> Job:
    run_at = NOW + timedelta(seconds=wanted.seconds)
    job = make_job(
        wanted.state,
        id=uuid7(),
        type=wanted.type,
        owner_id=wanted.owner,
        queue=wanted.queue,
        priority=wanted.priority,
        run_at=run_at,
        created_at=NOW - timedelta(minutes=1) + timedelta(seconds=number),
        execution=False,
        **({"held_reason": wanted.held, "held_since": NOW} if wanted.held else {}),
    )
    if wanted.state != State.QUEUED:
        holder = workers[number % len(workers)].pk if workers else uuid7()
        make_execution(job, worker=holder, lease_expires_at=NOW + timedelta(seconds=LEASE))
        return job
    if wanted.held == HeldReason.NO_HANDLER and wanted.seconds > 0:
        run_at = NEVER
        Job.objects.filter(pk=job.pk).update(claimable_at=NEVER)
    job.queue_entry.delete()
    job.claimable_at = run_at
    # What has just become claimable waits for a claim to mark it due.
    make_entry(job, due=run_at <= NOW and wanted.promoted)
    return job


def request_of(worker: Worker, approved: frozenset[uuid.UUID], caps: dict[str, Any]) -> Any:
    busy = Execution.objects.filter(worker_id=worker.pk, state__in=["claimed", "running"]).count()
    free = worker.concurrency - busy
    if free <= 0:
        return None
    return ClaimRequest(
        namespace="default",
        worker=worker.pk,
        slots=free,
        types=frozenset(worker.types),
        lease=LEASE,
        queues=None if worker.queues is None else tuple(worker.queues),
        excluded=frozenset(worker.excluded_queues),
        gated=frozenset({"gated"} & set(worker.types)),
        approved=approved,
        owner_cap=caps["OWNER_CONCURRENCY"],
        uncapped=frozenset(caps["UNCAPPED_OWNERS"]),
        global_cap=caps["GLOBAL_CONCURRENCY"],
    )


def claimed_by(worker: Worker, approved: frozenset[uuid.UUID], caps: dict[str, Any]) -> Any:
    """Return the jobs that this worker's claim would take now, and leave everything as it was."""
    request = request_of(worker, approved, caps)
    if request is None:
        return set()
    with undone():
        result = claim(connection, request)
        return {taking.job_id for taking in result.takings}


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    wanted=st.lists(JOBS, min_size=5, max_size=9),
    hands=st.lists(HANDS, min_size=1, max_size=3),
    caps=CAPS,
    paused=st.sampled_from([False] * 12 + [True]),
    refused=st.sets(st.integers(0, 8), max_size=3),
    turn=st.sampled_from(["", "a", "b", "z"]),
)
def test_what_a_claim_takes_was_said_to_be_ready(
    wanted: list[Wanted],
    hands: list[Hand],
    caps: dict[str, Any],
    paused: bool,
    refused: set[int],
    turn: str,
) -> None:
    clock = ManualClock(NOW)
    with use_clock(clock), override_settings(DURABLE_JOBS=caps), undone():
        workers = [add_worker(hand) for hand in hands]
        jobs = [add_job(each, number, workers) for number, each in enumerate(wanted)]
        Namespace.objects.create(name="default", turn_after=turn)
        if paused:
            pause("default")
        approved = frozenset(job.pk for n, job in enumerate(jobs) if n not in refused)
        said = {job.pk: explain(job) for job in jobs if job.state == State.QUEUED}
        live = [worker for worker, hand in zip(workers, hands, strict=True) if claims(hand)]
        taken = {worker: claimed_by(worker, approved, caps) for worker in live}
        for worker, ids in taken.items():
            for id in ids:
                assert said[id].code in READY, (worker.types, said[id])
        for told in said.values():
            event(told.code)
            assert str(told)
        # The only one that can be taken is; the others' conditions cannot hold it up.
        ready = [job for job in jobs if job.pk in said and said[job.pk].code in READY]
        if len(ready) == 1 and (ready[0].type != "gated" or ready[0].pk in approved):
            event("the only one")
            assert any(ready[0].pk in ids for ids in taken.values()), said[ready[0].pk]


def claims(hand: Hand) -> bool:
    return hand.state == "running" and hand.silent <= LEASE
