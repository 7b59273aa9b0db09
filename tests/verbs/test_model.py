"""Whatever is done to jobs in whatever order, the tables agree with a small pure model."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.transaction import atomic
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from django_durable_jobs import cancel, enqueue, replace_queued, requeue, resolve
from django_durable_jobs.claims import ClaimRequest, claim, settle
from django_durable_jobs.db import ManualClock, Outcome, transaction, use_clock
from django_durable_jobs.errors import IdempotencyConflict, NotQueued, WrongState
from django_durable_jobs.models import Execution, Job
from django_durable_jobs.states import SETTLED
from tests.factories import assert_queue_is_sound

TYPE = "x"
START = datetime(2031, 1, 1, tzinfo=UTC)

OWNERS = st.sampled_from(["", "a", "B", "b"])
KEYS = st.sampled_from(["k", "K", "l", None])
PAYLOADS = st.sampled_from([None, {}, {"n": 1}, {"n": True}, [1]])
PRIORITIES = st.integers(-2, 2)
DELAYS = st.sampled_from([0, 30, 90])


@dataclass
class Expected:
    """A job as the model sees it."""

    owner: str
    payload: Any
    priority: int
    key: str | None
    live: bool
    run_at: datetime
    claimable_at: datetime
    state: str = "queued"
    attempts: int = 0
    granted: int | None = None
    waits: bool = False  # for a retry
    keyed: bool = True  # holds its key
    claim_id: uuid.UUID | None = None

    def same(self, owner: str, payload: Any, priority: int) -> bool:
        mine, theirs = [self.payload], [payload]
        return (self.owner, self.priority, repr(mine)) == (owner, priority, repr(theirs))

    def settle(self, state: str) -> None:
        self.state, self.keyed = state, self.keyed and not self.live


class Jobs(RuleBasedStateMachine):
    """Put jobs through enqueue, replace, cancel, claim, settle, requeue and resolve."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START)
        self.using_clock = use_clock(self.clock)
        self.using_clock.__enter__()
        self.block = atomic()
        self.block.__enter__()
        self.expected: dict[uuid.UUID, Expected] = {}

    def teardown(self) -> None:
        self.using_clock.__exit__(None, None, None)
        connection.set_rollback(True)
        self.block.__exit__(None, None, None)

    @initialize(target=ids)
    def some_are_there(self) -> Any:
        for owner in ("", "a", "a"):
            made = enqueue(TYPE, owner_id=owner)
            moment = self.clock.value
            self.expected[made.pk] = Expected(
                owner, None, 0, made.idempotency_key, False, moment, moment
            )
        return multiple(*self.expected)

    def holder(self, key: str | None) -> uuid.UUID | None:
        for id, job in self.expected.items():
            if key is not None and job.keyed and job.key == key:
                return id
        return None

    def refuses(self, error: type[Exception], call: Callable[[], object]) -> None:
        with pytest.raises(error):
            call()

    @rule(
        target=ids,
        owner=OWNERS,
        payload=PAYLOADS,
        priority=PRIORITIES,
        key=KEYS,
        live=st.booleans(),
        delay=DELAYS,
    )
    def enqueue(
        self, owner: str, payload: Any, priority: int, key: str | None, live: bool, delay: int
    ) -> Any:
        run_at = self.clock.value + timedelta(seconds=delay) if delay else None

        def call() -> Job:
            return enqueue(
                TYPE,
                payload,
                owner_id=owner,
                priority=priority,
                idempotency_key=key,
                key_scope="live" if live else "ever",
                run_at=run_at,
            )

        holder = self.holder(key)
        if holder is not None:
            held = self.expected[holder]
            if not held.same(owner, payload, priority) or run_at not in (None, held.run_at):
                self.refuses(IdempotencyConflict, call)
                return multiple()
            found = call()
            assert (found.pk, found.created) == (holder, False)
            return multiple()
        made = call()
        assert made.created
        moment = run_at or self.clock.value
        self.expected[made.pk] = Expected(owner, payload, priority, key, live, moment, moment)
        return made.pk

    @rule(id=ids, owner=OWNERS, payload=PAYLOADS, priority=PRIORITIES)
    def replace(self, id: uuid.UUID, owner: str, payload: Any, priority: int) -> None:
        job = self.expected[id]

        def call() -> object:
            return replace_queued(id, owner_id=owner, payload=payload, priority=priority)

        if job.state != "queued":
            self.refuses(NotQueued, call)
            return
        call()
        job.owner, job.payload, job.priority = owner, payload, priority

    @rule(id=ids, key=KEYS.filter(bool))
    def replace_key(self, id: uuid.UUID, key: str) -> None:
        job = self.expected[id]

        def call() -> object:
            return replace_queued(id, idempotency_key=key)

        if job.state != "queued":
            self.refuses(NotQueued, call)
        elif self.holder(key) not in (None, id):
            self.refuses(IdempotencyConflict, call)
        else:
            call()
            job.key = key

    @rule(id=ids, delay=DELAYS)
    def replace_run_at(self, id: uuid.UUID, delay: int) -> None:
        job = self.expected[id]
        moment = self.clock.value + timedelta(seconds=delay)
        if job.state != "queued":
            self.refuses(NotQueued, lambda: replace_queued(id, run_at=moment))
            return
        replace_queued(id, run_at=moment)
        if moment != job.run_at:
            job.run_at = job.claimable_at = moment
            job.waits = False

    @rule(id=ids)
    def cancel(self, id: uuid.UUID) -> None:
        job = self.expected[id]
        if job.state != "queued":
            self.refuses(NotQueued, lambda: cancel(id))
            return
        cancel(id)
        job.settle("cancelled")
        job.waits = False

    def fitting(self, id: uuid.UUID, *states: str) -> uuid.UUID:
        """Return the id, or where its job is in none of the states one that is, if there is."""
        if self.expected[id].state in states:
            return id
        return next((other for other, job in self.expected.items() if job.state in states), id)

    @rule(id=ids, fits=st.booleans())
    def requeue(self, id: uuid.UUID, fits: bool) -> None:
        id = self.fitting(id, "failed", "interrupted") if fits else id
        job = self.expected[id]
        if job.state not in ("failed", "interrupted", "cancelled"):
            self.refuses(WrongState, lambda: requeue(id))
            return
        if self.holder(job.key) not in (None, id):
            self.refuses(IdempotencyConflict, lambda: requeue(id))
            return
        requeue(id)
        if job.state != "cancelled":
            job.granted = job.attempts + 1
        job.state, job.keyed, job.claim_id = "queued", True, None
        job.claimable_at = max(job.run_at, self.clock.value)
        job.waits = False

    @rule(id=ids, fits=st.booleans())
    def resolve(self, id: uuid.UUID, fits: bool) -> None:
        id = self.fitting(id, "interrupted") if fits else id
        job = self.expected[id]
        if job.state != "interrupted":
            self.refuses(WrongState, lambda: resolve(id, "done"))
            return
        resolve(id, "done")
        job.state = "completed"

    @rule(slots=st.integers(1, 3), gated=st.booleans())
    def claim(self, slots: int, gated: bool) -> None:
        due = {
            id
            for id, job in self.expected.items()
            if job.state == "queued" and job.claimable_at <= self.clock.value
        }
        request = ClaimRequest(
            namespace="default",
            worker=uuid.uuid4(),
            slots=slots,
            types=frozenset({TYPE}),
            lease=30.0,
            gated=frozenset({TYPE}) if gated else frozenset(),
            approved=frozenset(due),
        )
        with transaction("default") as own:
            takings = claim(own, request).takings
        assert len(takings) == min(slots, len(due))
        for taking in takings:
            assert taking.job_id in due
            job = self.expected[taking.job_id]
            job.state = "claimed" if gated else "running"
            job.claim_id = taking.claim_id
            job.attempts += 1
            if not gated:
                job.waits = False

    @rule(
        id=ids,
        edge=st.sampled_from(["complete", "fail", "retry", "interrupt", "release"]),
        delay=DELAYS,
        fits=st.booleans(),
    )
    def settle(self, id: uuid.UUID, edge: str, delay: int, fits: bool) -> None:
        id = self.fitting(id, "running", "claimed") if fits else id
        job = self.expected[id]
        claim_id = job.claim_id or uuid.uuid4()
        retries = {"delay": float(delay), "held_reason": "retry"} if edge == "retry" else {}
        with transaction("default") as own:
            outcome = Outcome(job_id=id, claim_id=claim_id, edge=edge, **retries)
            held = settle(own, [outcome])
        starts = ("running",) if edge in ("complete", "fail", "retry") else ("claimed", "running")
        if job.state not in starts:
            assert held == set()
            return
        assert held == {claim_id}
        if edge in ("retry", "release"):
            job.state, job.claim_id = "queued", None
            job.claimable_at = self.clock.value + timedelta(seconds=delay if retries else 0)
            job.attempts -= edge == "release"
            job.waits = bool(retries)
        else:
            job.settle({"complete": "completed", "fail": "failed"}.get(edge, "interrupted"))

    @rule(id=ids, edge=st.sampled_from(["complete", "fail", "retry", "interrupt", "release"]))
    def work(self, id: uuid.UUID, edge: str) -> None:
        self.claim(slots=1, gated=False)
        self.settle(id, edge, delay=0, fits=True)

    @rule(id=ids, edge=st.sampled_from(["fail", "interrupt"]))
    def fail_and_requeue(self, id: uuid.UUID, edge: str) -> None:
        self.work(id, edge)
        self.requeue(id, fits=True)

    @rule(seconds=st.sampled_from([1, 60]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def the_rows_are_as_expected(self) -> None:
        rows = {job.pk: job for job in Job.objects.all()}
        assert rows.keys() == self.expected.keys()
        for id, job in self.expected.items():
            row = rows[id]
            assert (row.state, row.owner_id, row.payload, row.priority) == (
                *(job.state, job.owner, job.payload, job.priority),
            )
            assert (row.attempts, row.max_attempts) == (job.attempts, job.granted)
            assert row.run_at == job.run_at
            assert (row.key_hash is not None) == job.keyed
            assert (row.finished_at is not None) == (row.state in SETTLED)
            if job.state != "cancelled":
                assert row.claim_id == job.claim_id
            if job.state == "queued":
                assert row.claimable_at == job.claimable_at
                assert (row.held_reason == "retry") == job.waits

    @invariant()
    def exactly_the_queued_jobs_stand_in_the_queue(self) -> None:
        assert_queue_is_sound()

    @invariant()
    def every_claim_has_its_execution(self) -> None:
        claims = {job.claim_id for job in self.expected.values() if job.claim_id}
        found = Execution.objects.filter(claim_id__in=claims)
        assert set(found.values_list("claim_id", flat=True)) == claims


@pytest.mark.django_db
def test_any_order_of_calls_keeps_to_the_model() -> None:
    run_state_machine_as_test(
        Jobs,
        settings=settings(
            max_examples=30 if connection.vendor == "sqlite" else 10,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
