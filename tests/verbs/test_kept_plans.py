"""A worker's statements are planned once, perhaps on empty tables, and must do when these fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from django_durable_jobs import claims
from django_durable_jobs.db import Taking, own_connections, statements_for, transaction
from tests import crowd
from tests.claiming import claim, outcome, settle

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="only there plans are kept"),
]

TABLES = [f"django_durable_jobs_{name}" for name in ("execution", "job", "queueentry")]
OTHERS = 20_000
# Prepared at the third time, and planned for whatever parameters after five more.
TIMES = 10


def pairs(held: list[Taking]) -> list[tuple[Any, Any]]:
    return [(taking.job_id, taking.claim_id) for taking in held]


STATEMENTS: dict[str, Callable[[list[Taking]], Any]] = {
    "a claim": lambda held: claim(slots=1),
    "ends": lambda held: settle([outcome(taking, result="{}") for taking in held]),
    "one end": lambda held: settle([outcome(held[0])]),
    "a retry": lambda held: settle([outcome(held[0], "retry", delay=60)]),
    "renewals": lambda held: statements_for(connection).renew(pairs(held), lease=30),
    "stop requests": lambda held: statements_for(connection).stop_requests(pairs(held)),
    "a start": lambda held: statements_for(connection).start(*pairs(held)[0]),
    "reading": lambda held: claims.load(connection, held),
}


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    crowd.analyze()
    yield
    crowd.empty()


def add_others() -> None:
    crowd.add_jobs(OTHERS, owners=200, state="completed", low=1)
    crowd.add_jobs(OTHERS, owners=200, seconds=3_600, low=50_001)


def read() -> int:
    """Return how many rows, index entries and pages of these tables this transaction has read."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT SUM(pg_stat_get_xact_tuples_returned(c.oid)"
            " + pg_stat_get_xact_blocks_fetched(c.oid))"
            " FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid"
            " WHERE COALESCE(i.indrelid, c.oid) = ANY(%s::regclass[])",
            [TABLES],
        )
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("planned", ["when empty", "when full"])
def test_what_a_worker_sends_reads_its_own_rows_and_no_others(planned: str) -> None:
    crowd.add_jobs(1_000, owners=1_000, low=100_001)
    # Either way the statistics say that there is next to nothing.
    with own_connections("default", lease=30) as own:
        if planned == "when full":
            add_others()
        for _ in range(TIMES):
            for send in STATEMENTS.values():
                send(claim(slots=10).takings)
        if planned == "when empty":
            add_others()
        assert own.connection.prepare_threshold is not None
        took = {}
        for name, send in STATEMENTS.items():
            held = claim(slots=10).takings
            assert len(held) == 10
            with transaction("default"):
                before = read()
                send(held)
                took[name] = read() - before
    # Whoever reads the others reads each of them, and its entry in an index.
    assert {name: number for name, number in took.items() if number > OTHERS / 2} == {}
