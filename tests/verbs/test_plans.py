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

from django_durable_jobs import claims
from django_durable_jobs.db import Taking, statements_for, transaction
from django_durable_jobs.models import Execution, QueueEntry
from tests import crowd
from tests.claiming import claim, outcome, request, settle
from tests.factories import make_worker

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
        "mysql": r"^(?!<derived)(?!None)\S+ (ALL|index) |queueentry .*filesort",
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
def full(request: pytest.FixtureRequest) -> None:
    """Fill the tables: 20,000 finished, 5,000 future, 5,000 due of 500 owners."""
    crowd.analyze()
    crowd.add_jobs(20_000, owners=500, state="completed", low=1)
    crowd.add_jobs(5_000, owners=500, seconds=3_600, low=30_001)
    crowd.add_jobs(5_000, owners=500, low=40_001)
    if request.param == "analysed":
        crowd.analyze()


@pytest.mark.parametrize("queues", [None, ("default",)], ids=["every queue", "one queue"])
def test_a_claim_walks_along_its_indexes(full: None, queues: tuple[str, ...] | None) -> None:
    claim(slots=5, owner_cap=1)
    with explained() as plans:
        assert len(claim(slots=20, owner_cap=1, queues=queues).takings) == 20
    assert_good(plans)
    assert len(using(plans, "ddj_queue_turn")) >= 2  # whose turn it is, and their next jobs
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
