"""Every hot statement walks along its index, whatever the statistics say.

EXPLAIN of what a claim, a settlement, a renewal and a reaper really send, on tables that hold a
thousand times what they take. Full size: benchmarks/claim_at_size.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from django_durable_jobs import claims, explain, figures, prune_jobs, status
from django_durable_jobs.db import Taking, statements_for, transaction
from django_durable_jobs.models import Execution, Job, QueueEntry
from tests import crowd
from tests.claiming import claim, outcome, request, settle
from tests.factories import make_worker, now

pytestmark = pytest.mark.django_db(transaction=True)

HOT = ("queueentry", "job", "execution")
Plans = dict[str, str]  # a statement's text: its plan


@contextmanager
def explained() -> Iterator[Plans]:
    """Collect the plan of every statement in the block, as it stands when it is sent."""
    plans: Plans = {}
    busy = False
    word = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal busy
        if not busy and re.match(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)", sql):
            busy = True
            try:
                with connection.cursor() as cursor:
                    cursor.execute(f"{word} {sql}", params)
                    names = [column[0] for column in cursor.description or ()]
                    plans[sql] = "\n".join(plan_line(names, row) for row in cursor.fetchall())
            finally:
                busy = False
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield plans


def plan_line(names: Sequence[str], row: Sequence[Any]) -> str:
    if connection.vendor != "mysql":
        return str(row[-1])
    line = dict(zip(names, row, strict=True))
    return " ".join(str(line[name]) for name in ("table", "type", "key", "Extra"))


def whats_wrong(plan: str) -> list[str]:
    """Return the lines of a plan that read a whole table of ours, or sort the queue."""
    tables = "|".join(f"django_durable_jobs_{name}" for name in HOT)
    patterns = {
        "postgresql": rf"Seq Scan on ({tables})\b|^\s*(->\s+)?Sort\b|Bitmap Heap Scan",
        "mysql": r"^(?!<)(?!None)\S+ (ALL|index) |queueentry .*filesort",
        "sqlite": rf"^SCAN ({tables})|TEMP B-TREE FOR (LAST .*)?ORDER BY",
    }
    return [line for line in plan.split("\n") if re.search(patterns[connection.vendor], line)]


def assert_good(plans: Plans, *, sorts: bool = False) -> None:
    """``sorts`` says that the few rows found may be sorted, or be collected in a bitmap."""
    assert plans
    few = re.compile(r"Sort|Bitmap Heap Scan|TEMP B-TREE|filesort" if sorts else "$.")
    wrong = {
        sql[:200]: lines
        for sql, plan in plans.items()
        if (lines := [line for line in whats_wrong(plan) if not few.search(line)])
    }
    assert wrong == {}


def using(plans: Plans, index: str) -> list[str]:
    return [sql for sql, plan in plans.items() if index in plan]


@pytest.fixture(params=["analysed", "analysed while empty"])
def full(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fill the tables: 20,000 finished, 5,000 future, 5,000 due of 500 owners."""
    crowd.analyze()
    crowd.add_jobs(20_000, owners=500, state="completed", low=1)
    crowd.add_jobs(5_000, owners=500, seconds=3_600, low=30_001)
    crowd.add_jobs(5_000, owners=500, low=40_001)
    if request.param == "analysed":
        crowd.analyze()
    yield
    # Rows that are only deleted slow down every test that follows, until they are vacuumed.
    crowd.empty()


@pytest.mark.parametrize("queues", [None, ("default",)], ids=["every queue", "one queue"])
def test_a_claim_walks_along_its_indexes(full: None, queues: tuple[str, ...] | None) -> None:
    claim(slots=5, owner_cap=1)
    with explained() as plans:
        assert len(claim(slots=20, owner_cap=1, queues=queues).takings) == 20
    assert_good(plans)
    walks = sum(plan.count("ddj_queue_turn") for plan in plans.values())
    assert walks >= 2  # whose turn it is, and their next jobs
    assert using(plans, "ddj_queue_wait")  # what has become due
    assert using(plans, "ddj_execution_active")  # who holds how much


def test_a_claim_that_finds_owners_full_walks_along_its_indexes(full: None) -> None:
    claim(slots=100, owner_cap=1)
    with explained() as plans:
        assert len(claim(slots=20, owner_cap=1).takings) == 20
    assert_good(plans)


def test_a_promotion_walks_along_its_index(full: None) -> None:
    QueueEntry.objects.filter(due=False).update(claimable_at="2026-01-01T00:00:00Z")
    with explained() as plans:
        assert claim(slots=1).promoted == 1_000
    selecting = {sql: plan for sql, plan in plans.items() if "ddj_queue_wait" in plan}
    assert_good(selecting)


def test_a_second_look_for_known_types_walks_along_its_indexes(full: None) -> None:
    QueueEntry.objects.filter(owner_id="owner-00000001").update(type="for.others")
    make_worker(types=["for.others"])
    with explained() as plans:
        assert len(claim(slots=20).takings) == 20
    assert_good({sql: plan for sql, plan in plans.items() if "queueentry" in sql})


def test_a_peek_walks_along_its_indexes(full: None) -> None:
    claim(slots=1)
    with explained() as plans:
        wanted = request(slots=20, gated=frozenset({"test.job"}))
        assert len(claims.peek(connection, wanted)) == 20
    assert_good(plans)


def take(count: int) -> list[Taking]:
    return claim(slots=count).takings


SETTLEMENTS: dict[str, Callable[[list[Taking]], Any]] = {
    "one end": lambda held: settle([outcome(held[0])]),
    "many ends": lambda held: settle([outcome(taking, result="{}") for taking in held]),
    "many failures": lambda held: settle([outcome(taking, "fail") for taking in held]),
    "a retry": lambda held: settle([outcome(held[0], "retry", delay=5)]),
    "a release": lambda held: settle([outcome(held[0], "release")]),
    "renewals": lambda held: renew(held),
    "a start": lambda held: statements_for(connection).start(held[0].job_id, held[0].claim_id),
    "reading": lambda held: claims.load(connection, held),
    "a reaper": lambda held: expire(),
}


def renew(held: list[Taking]) -> None:
    with transaction("default") as own:
        statements_for(own).renew([(t.job_id, t.claim_id) for t in held], lease=30)


def expire() -> None:
    with transaction("default") as own:
        assert claims.expire(own, "default", requeue_unstarted=False)


@pytest.mark.parametrize("what", SETTLEMENTS)
def test_what_follows_a_claim_finds_its_rows_by_index(full: None, what: str) -> None:
    held = take(20)
    Execution.objects.filter(state="running").update(lease_expires_at="2026-01-01T00:00:00Z")
    with explained() as plans:
        SETTLEMENTS[what](held)
    assert_good(plans, sorts=True)


def test_a_repair_reads_a_stretch_and_no_more(full: None) -> None:
    with explained() as plans:
        claims.repair(connection, "default", stretch=500)
    looks = {sql: plan for sql, plan in plans.items() if "looked" in sql}
    assert len(looks) == 3
    assert_good(looks, sorts=True)


def test_a_look_at_the_whole_walks_along_its_indexes(full: None) -> None:
    make_worker()
    held = take(20)
    with explained() as plans:
        told = status()
    assert told["counts"]["running"] == len(held) == 20
    assert told["oldest_due"] is not None
    # A count ends at a number of rows, by whichever way it comes to them; workers are few.
    looks = {sql: plan for sql, plan in plans.items() if not re.search(r"COUNT\(|_worker", sql)}
    assert len(looks) >= 3
    assert_good(looks, sorts=True)


def test_an_explanation_walks_along_its_indexes(full: None) -> None:
    make_worker()
    held = take(20)
    # The last one of an owner; workers are few.
    last = QueueEntry.objects.filter(owner_id="owner-00000400", due=True).order_by("-pk")[0]
    for job_id, code, statements in ((last.pk, "turn", 7), (held[0].job_id, "running", 3)):
        with explained() as plans:
            assert explain(job_id).code == code
        looks = {
            sql: plan for sql, plan in plans.items() if not re.search(r"FROM \S*_worker\b", sql)
        }
        assert len(looks) >= statements - 1
        assert_good(looks, sorts=True)


def test_pruning_finds_and_deletes_its_rows_by_index(full: None) -> None:
    Job.objects.filter(owner_id__lt="owner-00000013", state="completed").update(
        finished_at="2026-01-01T00:00:00Z"
    )
    with explained() as plans:
        assert prune_jobs(86_400) == 520
    # Schedules are few, and here there are none: MariaDB takes no index of an empty table.
    hot = {sql: plan for sql, plan in plans.items() if not re.search("_schedule|_tickclaim", sql)}
    assert len(hot) >= 7
    assert_good(hot, sorts=True)


def test_pruning_a_table_of_young_jobs_only_reads_it_along_its_key(full: None) -> None:
    with explained() as plans:
        assert prune_jobs() == 0
    assert len(plans) == 2
    assert_good(plans, sorts=True)


def test_the_figures_of_the_overview_walk_along_their_indexes(full: None) -> None:
    settle([outcome(taking, "fail") for taking in claim(slots=20).takings[:10]])
    with explained() as plans:
        assert figures.backlog("default", now(), using="default").due > 4_000
        figures.recent("default", figures.SPANS["24h"], using="default")
        figures.failures("default", using="default")
        figures.undecided("default", using="default")
    assert_good({sql: plan for sql, plan in plans.items() if "queueentry" in sql})
    assert len(using(plans, "ddj_queue_wait")) >= 5
