"""The claim: whose job comes next, and how many."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections
from django.test.utils import CaptureQueriesContext

from django_durable_jobs import cancel, claims
from django_durable_jobs.db import own_connections, transaction
from django_durable_jobs.models import Execution, Job, Namespace, QueueEntry
from django_durable_jobs.states import State
from tests.claiming import TYPE, claim, columns, finish, owners, request, take
from tests.factories import assert_queue_is_sound, make_entry, make_job, make_worker

pytestmark = pytest.mark.django_db(transaction=True)

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def at(minute: int) -> datetime:
    return THEN + timedelta(minutes=minute)


# The order


def test_an_owners_jobs_come_by_priority_then_run_at_then_creation_then_id() -> None:
    same = uuid.UUID(int=1), uuid.UUID(int=2)
    last = make_job(priority=-1, run_at=at(0))
    by_id = [make_job(id=id, run_at=at(2), created_at=at(0)) for id in reversed(same)]
    newer = make_job(run_at=at(2), created_at=at(1))
    earlier = make_job(run_at=at(1), created_at=at(5))
    urgent = make_job(priority=5, run_at=at(9))
    assert take() == [urgent, earlier, by_id[1], by_id[0], newer, last]


def test_priority_does_not_cross_owners() -> None:
    make_job(owner_id="a", priority=-100)
    for _ in range(3):
        make_job(owner_id="b", priority=100)
    assert owners(take(slots=2)) == "a b"


def test_owners_take_turns_round_by_round() -> None:
    for owner, count in (("a", 5), ("b", 1), ("c", 3)):
        for _ in range(count):
            make_job(owner_id=owner)
    assert owners(take(slots=7)) == "a b c a c a c"


def test_the_turn_goes_on_where_it_ended_whoever_claims() -> None:
    for owner in "abcd":
        for _ in range(3):
            make_job(owner_id=owner)
    turns = [owners(take(slots=3, worker=uuid.uuid4())) for _ in range(4)]
    assert turns == ["a b c", "d a b", "c d a", "b c d"]
    assert Namespace.objects.get(pk="default").turn_after == "d"


def test_a_large_backlog_does_not_hold_up_another_owners_next_job() -> None:
    for _ in range(60):
        make_job(owner_id="a")
    make_job(owner_id="b")
    assert owners(take(slots=1)) == "a"
    assert owners(take(slots=1)) == "b"


@pytest.mark.parametrize("slots", [1, 3, 50])
def test_names_sort_byte_for_byte_and_none_is_left_out(slots: int) -> None:
    names = ["", "A", "a", "a ", "ä", "a\u0301", "ß", "ss", "\uffff", "😀", "🎉"]
    for name in reversed(names):
        make_job(owner_id=name)
    taken: list[Job] = []
    while jobs := take(slots=slots):
        taken += jobs
    order = sorted(names)
    # No turn was kept yet, which is as if the owner without a name had had it.
    assert [job.owner_id for job in taken] == [*order[1:], ""]


def test_more_jobs_than_one_statement_takes_are_claimed_once_each() -> None:
    for number in range(130):
        make_job(owner_id=f"o{number % 120}")
    jobs = take(slots=125)
    assert len(set(jobs)) == 125
    assert len(take(slots=125)) == 5
    assert_queue_is_sound()


# Caps


def test_an_owner_has_no_more_than_its_cap_counting_what_it_has_already() -> None:
    make_job(State.RUNNING, owner_id="a")
    make_job(State.CLAIMED, owner_id="b")
    make_job(State.COMPLETED, owner_id="c")
    for owner in "abcabcabc":
        make_job(owner_id=owner)
    assert owners(take(owner_cap=1)) == "c"
    assert owners(take(owner_cap=2)) == "a b c"
    assert take(owner_cap=2) == []


def test_uncapped_owners_have_no_cap_and_the_others_keep_theirs() -> None:
    for owner in ["", "a"] * 4:
        make_job(owner_id=owner)
    jobs = take(owner_cap=1, uncapped=frozenset({""}))
    assert owners(jobs).split(" ").count("") == 4
    assert owners(jobs).split(" ").count("a") == 1


def test_the_namespace_has_no_more_than_its_cap_counting_what_it_has_already() -> None:
    make_job(State.RUNNING, owner_id="a")
    make_job(State.RUNNING, owner_id="b", namespace="other")
    for _ in range(5):
        make_job(owner_id="a")
    assert len(take(global_cap=3)) == 2
    assert take(global_cap=3) == []
    assert take(global_cap=1) == []


def test_a_settled_job_makes_room() -> None:
    for _ in range(3):
        make_job(owner_id="a")
    first = take(owner_cap=1)
    assert take(owner_cap=1) == []
    finish(first)
    assert len(take(owner_cap=1)) == 1


def test_many_owners_at_their_cap_do_not_hide_one_with_room() -> None:
    for number in range(60):
        make_job(State.RUNNING, owner_id=f"busy{number:02}")
        make_job(owner_id=f"busy{number:02}")
    make_job(owner_id="free")
    assert owners(take(owner_cap=1, slots=2)) == "free"


def test_no_slot_takes_no_job() -> None:
    make_job()
    assert take(slots=0) == []


# Queues and namespaces


def test_a_worker_takes_from_its_queues_only() -> None:
    for queue in ("mail", "slow", "default"):
        make_job(queue=queue, owner_id=queue)
    assert owners(take(queues=("mail",))) == "mail"
    assert owners(take(excluded=frozenset({"slow"}))) == "default"
    assert owners(take(queues=("slow", "none"))) == "slow"
    assert take(queues=()) == []


def test_an_excluded_queue_is_excluded_also_where_it_is_named() -> None:
    make_job(queue="slow")
    assert take(queues=("slow",), excluded=frozenset({"slow"})) == []


@pytest.mark.parametrize("queues", [None, ("one", "two"), ("two", "one")])
def test_an_owners_order_goes_across_queues(queues: tuple[str, ...] | None) -> None:
    second = make_job(queue="one", owner_id="a", run_at=at(2))
    third = make_job(queue="two", owner_id="a", run_at=at(3))
    first = make_job(queue="two", owner_id="a", run_at=at(1))
    other = make_job(queue="one", owner_id="b", run_at=at(9))
    assert take(queues=queues, slots=2) == [first, other]
    assert take(queues=queues) == [second, third]


def test_an_owner_far_along_one_queue_gets_its_best_job_of_all_queues() -> None:
    """Two slots look at two owners of a queue first: z's better job is behind these."""
    for owner in "abc":
        make_job(queue="crowded", owner_id=owner, type="for.others")
    make_job(queue="quiet", owner_id="z", run_at=at(2))
    best = make_job(queue="crowded", owner_id="z", run_at=at(1))
    with_a_handler("for.others")
    assert take(slots=1) == [best]


def test_owners_take_turns_across_queues() -> None:
    for queue, names in (("one", "ace"), ("two", "bdf")):
        for name in names * 2:
            make_job(queue=queue, owner_id=name)
    assert owners(take(slots=4)) == "a b c d"
    assert owners(take(slots=4)) == "e f a b"


def test_a_namespace_sees_nothing_of_another() -> None:
    theirs = make_job(namespace="other", owner_id="a")
    make_job(State.RUNNING, namespace="other", owner_id="b")
    mine = make_job(owner_id="b")
    assert take(owner_cap=1, global_cap=1) == [mine]
    assert columns(theirs)["state"] == "queued"
    assert not Namespace.objects.filter(pk="other").exists()


def test_a_paused_namespace_gives_nothing() -> None:
    make_job()
    Namespace.objects.create(name="default", paused_at=THEN)
    result = claim()
    assert (result.paused, result.takings) == (True, [])
    Namespace.objects.update(paused_at=None)
    assert len(take()) == 1


# What this worker cannot take


def with_a_handler(*types: str) -> None:
    """Let a live worker know these types."""
    make_worker(types=list(types))


def test_jobs_for_other_workers_do_not_cost_this_ones_owners_their_slots() -> None:
    with_a_handler("for.others")
    for owner in "bcd":
        make_job(owner_id=owner, type="for.others")
    for _ in range(6):
        make_job(owner_id="a")
    make_job(owner_id="e")
    assert owners(take(slots=4)) == "a e a a"


def test_an_owner_behind_many_that_have_nothing_here_is_not_passed_over() -> None:
    """As many owners as there are slots have nothing for this worker, turn after turn."""
    with_a_handler("for.others")
    for number in range(40):
        make_job(owner_id=f"b{number:02}", type="for.others")
    for _ in range(8):
        make_job(owner_id="a")
    make_job(owner_id="z")
    assert owners(take(slots=3)) == "a z a"


def test_an_owners_job_behind_jobs_for_other_workers_is_found() -> None:
    with_a_handler("for.others")
    for _ in range(30):
        make_job(owner_id="a", type="for.others", priority=9)
    mine = make_job(owner_id="a")
    assert take(slots=2) == [mine]


def test_a_worker_without_handlers_takes_nothing() -> None:
    with_a_handler(TYPE)
    make_job()
    assert take(types=frozenset()) == []
    assert QueueEntry.objects.get().due


# Rows that are not what they should be


@contextmanager
def held_by_another(change: Callable[[], Any]) -> Iterator[None]:
    """Let another connection do something in a transaction that stays open for the block."""
    done, over = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction("default"):
                change()
                done.set()
                over.wait(30)
        finally:
            done.set()
            connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    done.wait(30)
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.races
@pytest.mark.parametrize("queues", [None, ("default",)])
def test_a_row_that_another_transaction_holds_is_passed_over(
    queues: tuple[str, ...] | None,
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks the whole file")
    held = [make_job(owner_id="a", run_at=at(minute)) for minute in (1, 2)]
    following = make_job(owner_id="a", run_at=at(3))
    other = make_job(owner_id="b")

    def lock() -> None:
        entries = QueueEntry.objects.select_for_update().filter(pk__in=[job.pk for job in held])
        assert len(entries) == 2

    with held_by_another(lock), own_connections("default"):
        assert take(slots=2, queues=queues) == [following, other]
        assert take(queues=queues) == []
    assert take(queues=queues) == held


@pytest.mark.races
def test_a_cancellation_that_has_not_committed_does_not_block_a_claim() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks the whole file")
    cancelled, free = make_job(run_at=at(1)), make_job(run_at=at(2))
    with held_by_another(lambda: cancel(cancelled.pk)), own_connections("default"):
        assert take() == [free]
    assert take() == []
    assert columns(cancelled)["state"] == "cancelled"
    assert_queue_is_sound()


def test_an_entry_whose_job_is_gone_does_not_break_a_claim() -> None:
    gone, there = make_job(run_at=at(1)), make_job(run_at=at(2))
    QueueEntry.objects.filter(pk=gone.pk).update(run_at=at(0))
    Job.objects.filter(pk=gone.pk)._raw_delete("default")
    assert take() == [there]
    assert Execution.objects.count() == 1
    assert_queue_is_sound()


def test_an_entry_of_a_job_that_is_not_queued_claims_nothing() -> None:
    job = make_job(State.COMPLETED)
    make_entry(job, due=True)
    before = columns(job)
    assert claim().takings == []
    assert columns(job) == before
    assert_queue_is_sound()


# What a claim writes


def test_a_claim_records_an_attempt_under_a_claim_id_of_its_own() -> None:
    worker = uuid.uuid4()
    for _ in range(3):
        make_job(attempts=2)
    result = claim(worker=worker, lease=60)
    assert len({taking.claim_id for taking in result.takings}) == 3
    for taking in result.takings:
        job, execution = Job.objects.get(pk=taking.job_id), Execution.objects.get(job=taking.job_id)
        assert (job.state, job.attempts, job.claim_id) == ("running", 3, taking.claim_id)
        assert (execution.state, execution.attempt) == ("running", 3)
        assert (execution.claim_id, execution.worker_id) == (taking.claim_id, worker)
        assert execution.started_at is not None
        lease = execution.lease_expires_at - execution.claimed_at
        assert lease.total_seconds() == pytest.approx(60, abs=0.1)
    assert_queue_is_sound()


def test_whether_it_goes_back_after_an_interruption_is_decided_at_the_claim() -> None:
    asked = []

    def repeats(type: str, attempt: int, granted: int | None) -> bool:
        asked.append((type, attempt, granted))
        return attempt == 1

    first = make_job(run_at=at(1))
    make_job(run_at=at(2), attempts=4, max_attempts=7)
    take(repeats=repeats)
    assert asked == [(TYPE, 1, None), (TYPE, 5, 7)]
    repeated = Execution.objects.filter(requeue_on_interrupt=True)
    assert [execution.job_id for execution in repeated] == [first.pk]


def test_a_claim_reads_no_json() -> None:
    make_job(payload={"a": "b" * 10_000}, owner_id="a")
    with transaction("default") as own, CaptureQueriesContext(own) as queries:
        assert claims.claim(own, request(owner_cap=1)).takings
    for query in queries:
        assert not {"payload", "target", "meta"} & set(query["sql"].replace(",", " ").split())
        assert "*" not in query["sql"].replace("COUNT(*)", "").split("FROM")[0].replace(
            "SELECT * ", ""
        )


def test_an_idle_claim_is_cheap() -> None:
    take()
    make_job(run_at=at(60 * 24 * 365 * 50))
    with transaction("default") as own, CaptureQueriesContext(own) as queries:
        claims.claim(own, request(queues=("default",)))
    statements = [q["sql"] for q in queries if not q["sql"].startswith(("BEGIN", "SAVEPOINT"))]
    assert len(statements) <= {"postgresql": 3}.get(connection.vendor, 5)


# Reading what was claimed

UNREADABLE = {
    "no JSON": ("payload", "{"),
    "a huge integer": ("payload", "1" * 5_000),
    "deep nesting": ("payload", "[" * 40_000 + "]" * 40_000),
    "no kind": ("target", '{"id": "1"}'),
    "a blank id": ("target", '{"kind": "job", "id": " "}'),
    "no object": ("target", "[1]"),
    "meta": ("meta", "{]"),
}


@pytest.mark.parametrize("wrong", UNREADABLE)
def test_a_row_edited_into_nonsense_is_told_of_and_harms_no_neighbour(wrong: str) -> None:
    column, text = UNREADABLE[wrong]
    bad, good = make_job(run_at=at(1)), make_job(run_at=at(2), payload={"a": 1})
    edit_by_hand(bad, column, text)
    read = claims.load(connection, claim().takings)
    assert [claimed.job for claimed in read] == [bad, good]
    assert column in read[0].unreadable
    assert "edited by hand" in read[0].unreadable
    assert read[1].unreadable == ""
    assert read[1].job.payload == {"a": 1}
    with CaptureQueriesContext(connection) as queries:
        assert [getattr(read[0].job, name) for name in ("payload", "target", "meta")]
    assert not queries.captured_queries


def edit_by_hand(job: Job, column: str, text: str) -> None:
    """Store ``text`` where the database lets anybody, else skip."""
    id = job.pk if connection.features.has_native_uuid_field else job.pk.hex
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = ON")
        try:
            cursor.execute(
                f"UPDATE django_durable_jobs_job SET {column} = %s WHERE id = %s", [text, id]
            )
        except DatabaseError:
            pytest.skip("this database refuses such a value")
        finally:
            if connection.vendor == "sqlite":
                cursor.execute("PRAGMA ignore_check_constraints = OFF")


def test_a_job_deleted_since_its_claim_is_left_out() -> None:
    make_job()
    there = make_job()
    takings = claim().takings
    Job.objects.exclude(pk=there.pk)._raw_delete("default")
    assert [claimed.job for claimed in claims.load(connection, takings)] == [there]
