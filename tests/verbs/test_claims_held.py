"""What is queued and not claimable: future jobs, refused ones, those that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_jobs import claims
from django_durable_jobs.db import ManualClock, current_clock, transaction, use_clock
from django_durable_jobs.db.claiming import BATCH
from django_durable_jobs.models import Execution, Job, QueueEntry, Worker
from django_durable_jobs.states import HeldReason
from tests import crowd
from tests.claiming import TYPE, claim, columns, outcome, owners, request, settle, take
from tests.factories import assert_queue_is_sound, make_job, make_worker

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    clock = ManualClock(NOW)
    with use_clock(clock):
        yield clock


def later(job_in: float, **values: object) -> Job:
    """Make a job that is to run so many seconds after now, with an entry that waits for it."""
    job = make_job(run_at=NOW + timedelta(seconds=job_in), created_at=NOW, **values)
    QueueEntry.objects.filter(pk=job.pk).update(due=False)
    return job


# Jobs for later


def test_a_future_job_is_taken_when_its_time_comes_and_not_before(clock: ManualClock) -> None:
    job = later(10)
    clock.advance(9.999)
    assert take() == []
    clock.advance(0.001)
    assert take() == [job]


def test_a_job_that_becomes_due_is_dealt_with_the_others_at_once(clock: ManualClock) -> None:
    make_job(owner_id="a", created_at=NOW), make_job(owner_id="c", created_at=NOW)
    later(5, owner_id="b")
    clock.advance(5)
    result = claim(slots=2)
    assert (owners_of(result), result.promoted) == ("a b", 1)


def owners_of(result: claims.ClaimResult) -> str:
    return " ".join(taking.owner_id for taking in result.takings)


def test_a_mass_of_jobs_becomes_due_in_bounded_batches(clock: ManualClock) -> None:
    crowd.add_jobs(2 * BATCH + 10, owners=1, seconds=3_600, low=1)
    QueueEntry.objects.update(claimable_at=NOW + timedelta(seconds=1))
    clock.advance(1)
    promoted = [claim(slots=1).promoted for _ in range(4)]
    assert promoted == [BATCH, BATCH, 10, 0]


def test_while_a_mass_becomes_due_an_owner_waits_only_for_what_was_due_before_it(
    clock: ManualClock,
) -> None:
    crowd.add_jobs(BATCH, owners=1, seconds=3_600, low=1)
    QueueEntry.objects.update(claimable_at=NOW + timedelta(seconds=1))
    later(2, owner_id="z")
    clock.advance(2)
    claim(slots=2)
    assert owners(take(slots=2)).split()[0] == "z"


def test_what_waits_in_another_namespace_stays_there(clock: ManualClock) -> None:
    later(1, namespace="other")
    clock.advance(1)
    assert claim().promoted == 0


# No handler


def test_jobs_that_no_live_worker_knows_are_put_off_and_do_not_hide_the_next() -> None:
    crowd.add_jobs(2 * BATCH + 5, owners=1, low=1, type="unknown")
    make_job(owner_id="owner-00000000", run_at=NOW, created_at=NOW)
    QueueEntry.objects.filter(type="unknown").update(run_at=NOW - timedelta(days=1))
    with transaction("default") as own:
        result = claims.claim(own, request(slots=2))
    assert len(result.takings) == 1
    for left in (BATCH + 5, 5, 0, 0):
        assert QueueEntry.objects.filter(due=True).count() == left
        claim(slots=2)
    held = Job.objects.filter(held_reason=HeldReason.NO_HANDLER)
    assert held.count() == 2 * BATCH + 5
    assert set(held.values_list("claimable_at", "held_since")) == {(claims.NEVER, NOW)}


def test_a_job_for_a_handler_of_another_live_worker_stays_claimable() -> None:
    make_worker(types=["other"], state=Worker.Status.DRAINING)
    make_worker(types=["gone"], state=Worker.Status.LOST)
    make_worker(types=["elsewhere"], namespace="elsewhere")
    theirs = make_job(type="other")
    held = [make_job(type="gone"), make_job(type="elsewhere")]
    assert take() == []
    assert QueueEntry.objects.get(due=True).pk == theirs.pk
    assert take(types=frozenset({"other"})) == [theirs]
    assert all(columns(job)["held_reason"] == HeldReason.NO_HANDLER for job in held)


def test_jobs_put_off_are_freed_by_a_worker_that_knows_them() -> None:
    jobs = [make_job(type=type, run_at=NOW, created_at=NOW) for type in ("new", "newer", "old")]
    other = make_job(type="new", namespace="other")
    take()
    take(namespace="other")
    make_worker(types=["new", "newer"])
    with transaction("default") as own:
        assert claims.free_known(own, "default", {"new", "newer"}) == 2
    for job in jobs[:2]:
        row = columns(job)
        assert (row["held_reason"], row["held_since"], row["claimable_at"]) == ("", None, NOW)
    assert columns(jobs[2])["held_reason"] == HeldReason.NO_HANDLER
    assert columns(other)["held_reason"] == HeldReason.NO_HANDLER
    assert set(take(types=frozenset({"new", "newer"}))) == set(jobs[:2])
    assert_queue_is_sound()


def test_one_unknown_job_costs_no_walk_along_its_owners_backlog() -> None:
    make_job(type="unknown", owner_id="owner-00000000", priority=9)
    crowd.add_jobs(2 * BATCH, owners=1, low=1)
    crowd.add_jobs(1, owners=1, low=5_000, type="unknown")
    assert len(take(slots=1)) == 1
    # The one far behind the first thousand is met when its turn comes.
    assert QueueEntry.objects.filter(type="unknown", due=True).count() == 1


# A can_run


def test_a_gated_job_is_taken_only_when_approved_and_is_not_started() -> None:
    gated = make_job(owner_id="a", held_since=NOW, held_reason=HeldReason.NOT_ELIGIBLE)
    refused = claim(gated=frozenset({TYPE}))
    assert (refused.takings, refused.left_over) == ([], True)
    result = claim(gated=frozenset({TYPE}), approved=frozenset({gated.pk}))
    assert [taking.starts for taking in result.takings] == [False]
    row = columns(gated)
    assert (row["state"], row["held_since"]) == ("claimed", NOW)
    execution = Execution.objects.get()
    assert (execution.state, execution.started_at) == ("claimed", None)


def test_jobs_that_nobody_has_approved_hold_up_nothing_behind_them() -> None:
    for owner in "aaabbb":
        make_job(owner_id=owner, type="gated", priority=9)
    for owner in "abcz":
        make_job(owner_id=owner)
    result = claim(
        slots=5, types=frozenset({TYPE, "gated"}), gated=frozenset({"gated"}), owner_cap=1
    )
    assert (owners_of(result), result.left_over) == ("a b c z", True)


def test_gated_and_other_jobs_travel_in_one_claim() -> None:
    gated, plain = make_job(owner_id="a", type="gated"), make_job(owner_id="b")
    result = claim(
        types=frozenset({TYPE, "gated"}),
        gated=frozenset({"gated"}),
        approved=frozenset({gated.pk}),
    )
    assert {t.job_id: t.starts for t in result.takings} == {gated.pk: False, plain.pk: True}
    assert (columns(gated)["state"], columns(plain)["state"]) == ("claimed", "running")


def test_a_peek_names_the_gated_jobs_that_come_next_and_changes_nothing() -> None:
    jobs = [make_job(owner_id=owner, type="gated") for owner in "abc"]
    make_job(owner_id="ab")
    wanted = request(slots=3, types=frozenset({TYPE, "gated"}), gated=frozenset({"gated"}))
    assert claims.peek(connection, wanted) == []  # nothing was ever claimed in this namespace
    claim(slots=0)
    with CaptureQueriesContext(connection) as queries:
        assert claims.peek(connection, wanted) == [jobs[0].pk, jobs[1].pk]
    assert not [q for q in queries if "UPDATE" in q["sql"] or "INSERT" in q["sql"]]


def test_an_approved_job_that_was_replaced_by_one_of_an_unknown_type_is_not_taken() -> None:
    job = make_job(type="unknown", owner_id="a")
    make_worker(types=["unknown"])
    assert take(gated=frozenset({TYPE}), approved=frozenset({job.pk})) == []


# Putting off


def refuse(job: Job, *, longest: float = 30.0) -> float:
    """Put the job off, and return for how many seconds."""
    with transaction("default") as own:
        claims.put_off(own, Job.objects.get(pk=job.pk), longest=longest)
    row = columns(job)
    assert row["held_reason"] == HeldReason.NOT_ELIGIBLE
    pause: timedelta = row["claimable_at"] - current_clock().now(connection)
    return pause.total_seconds()


def test_a_refused_job_is_put_off_for_longer_each_time(clock: ManualClock) -> None:
    job = make_job(run_at=NOW, created_at=NOW)
    pauses = []
    for _ in range(7):
        pauses.append(refuse(job))
        assert take() == []
        clock.advance(pauses[-1])
        claim(slots=0)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert columns(job)["held_since"] == NOW
    assert take() == [job]
    assert columns(job)["held_since"] is None


def test_the_time_that_a_job_waited_for_its_retry_does_not_lengthen_its_first_pause(
    clock: ManualClock,
) -> None:
    job = make_job(run_at=NOW, created_at=NOW)
    (taking,) = claim().takings
    settle([outcome(taking, "retry", delay=600, held_reason=HeldReason.RETRY)])
    clock.advance(600)
    claim(slots=0)
    assert refuse(job) == 1
    assert columns(job)["held_since"] == clock.value


def test_a_refusal_after_the_claim_goes_on_where_the_refusals_before_it_ended(
    clock: ManualClock,
) -> None:
    job = make_job(run_at=NOW, created_at=NOW)
    refuse(job)
    clock.advance(1)
    (taking,) = claim(gated=frozenset({TYPE}), approved=frozenset({job.pk})).takings
    (claimed,) = claims.load(connection, [taking])
    pause = claims.pause_after(claimed.job, clock.value, longest=30)
    assert pause == 2
    settle([outcome(taking, "release", delay=pause, held_reason=HeldReason.NOT_ELIGIBLE)])
    row = columns(job)
    assert (row["held_since"], row["claimable_at"]) == (NOW, clock.value + timedelta(seconds=2))
    assert_queue_is_sound()


def test_a_second_refusal_of_a_job_already_put_off_changes_nothing() -> None:
    job = make_job(run_at=NOW, created_at=NOW)
    stale = Job.objects.get(pk=job.pk)
    refuse(job)
    before = columns(job)
    with transaction("default") as own:
        claims.put_off(own, stale, longest=600)
    assert columns(job) == before
    assert_queue_is_sound()


def test_a_job_claimed_since_it_was_asked_about_is_not_put_off() -> None:
    job = make_job()
    take()
    before = columns(job)
    with transaction("default") as own:
        claims.put_off(own, job, longest=600)
    assert columns(job) == before


def test_refused_jobs_are_asked_again_at_once_when_somebody_says_so() -> None:
    refused = make_job(run_at=NOW, created_at=NOW)
    unknown = make_job(run_at=NOW, created_at=NOW, type="unknown")
    elsewhere = make_job(run_at=NOW, created_at=NOW, namespace="other")
    refuse(refused)
    refuse(elsewhere)
    waiting = later(600)
    claim(types=frozenset({"none"}), slots=1)
    with transaction("default") as own:
        assert claims.free_ineligible(own, "default") == 1
    assert columns(refused)["claimable_at"] == NOW
    assert QueueEntry.objects.get(pk=refused.pk).due
    assert not QueueEntry.objects.filter(pk__in=[waiting.pk, elsewhere.pk], due=True)
    assert columns(unknown)["held_reason"] in ("", HeldReason.NO_HANDLER)
    assert_queue_is_sound()
