"""Does a claim cost more in a full table? It may cost twice what it does in an empty one.

    python benchmarks/claim_at_size.py [--db sqlite,postgres,mariadb] [--scale 1.0]

Prints, for each database, the milliseconds of a claim of 50 (the median by the clock on the wall,
and the mean of the processor time, here and in the server, by which it judges): with
100,000 due jobs of 10,000 owners alone; with 1,000,000 finished and 100,000 future ones beside
them; and, as it is after a quiet night, with statistics that say that the tables are empty.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import cpu  # noqa: E402
from tests import databases  # noqa: E402

SLOTS = 50
ROUNDS = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default=",".join(databases.NAMES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--explain", action="store_true", help="print slow statements")
    options = parser.parse_args()
    if databases.VARIABLE in os.environ:
        return measure(options.scale, explain=options.explain)
    worst = 0
    for name in options.db.split(","):
        with databases.OPENERS[name]() as database:
            print(f"{database.version}", flush=True)
            environment = os.environ | {
                databases.VARIABLE: json.dumps(database.settings),
                "DJANGO_SETTINGS_MODULE": "tests.settings",
            }
            command = [sys.executable, __file__, *sys.argv[1:]]
            worst = max(worst, subprocess.call(command, env=environment))
    return worst


def measure(scale: float, *, explain: bool) -> int:
    import django

    django.setup()
    from django.db import connection

    from django_durable_jobs.db import own_connections
    from tests import crowd

    finished, future, due, owners = (
        max(1, int(number * scale)) for number in (1_000_000, 100_000, 100_000, 10_000)
    )
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        with own_connections("default"):
            crowd.add_jobs(due, owners=owners, low=2_000_001)
            crowd.analyze()
            alone = report("only the due jobs", explain=explain)
            crowd.empty()
            crowd.analyze()  # the statistics of a quiet night
            started = time.monotonic()
            crowd.add_jobs(finished, owners=owners, state="completed", low=1)
            crowd.add_jobs(future, owners=owners, seconds=3_600, low=1_500_001)
            crowd.add_jobs(due, owners=owners, low=2_000_001)
            print(f"  (filled in {time.monotonic() - started:.0f} s)")
            surprised = report("full, analysed empty", explain=explain)
            crowd.analyze()
            full = report("full, analysed", explain=explain)
            print(f"  full/alone {full / alone:.2f}, analysed empty/alone {surprised / alone:.2f}")
            return int(max(full, surprised) > 2 * alone)
    finally:
        connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)


def report(what: str, *, explain: bool) -> float:
    """Claim and settle in turns; print and return the microseconds per job claimed."""
    from django_durable_jobs.claims import ClaimRequest, claim, load, settle
    from django_durable_jobs.db import Outcome, transaction

    request = ClaimRequest(
        namespace="default",
        worker=uuid.uuid4(),
        slots=SLOTS,
        types=frozenset({"test.job"}),
        lease=600,
        owner_cap=1,
    )
    from django.db import connections

    now = cpu.clock(connections["default"])
    claims, settlements, walls, taken = [], [], [], 0
    with timed_statements(explain):
        for number in range(ROUNDS + 5):
            begun, begun_wall = now(), time.perf_counter()
            with transaction("default") as connection:
                result = claim(connection, request)
            claimed, claimed_wall = now(), time.perf_counter()
            load(connection, result.takings)
            outcomes = [
                Outcome(job_id=t.job_id, claim_id=t.claim_id, edge="complete", result="{}")
                for t in result.takings
            ]
            settling = now()
            with transaction("default") as connection:
                settle(connection, outcomes)
            if number >= 5:
                claims.append((claimed - begun) * 1e3)
                walls.append((claimed_wall - begun_wall) * 1e3)
                settlements.append((now() - settling) * 1e3)
                taken += len(result.takings)
    assert taken == SLOTS * ROUNDS, taken
    mean = statistics.mean(claims)
    print(
        f"  {what:22} claim {mean:6.2f} ms of processor, {mean / SLOTS * 1e3:4.0f} µs/job"
        f" (wall: median {statistics.median(walls):.2f} ms, slowest {max(walls):.1f});"
        f" settle {statistics.mean(settlements):.2f} ms",
        flush=True,
    )
    return mean / SLOTS * 1e3


@contextmanager
def timed_statements(wanted: bool) -> Any:
    if not wanted:
        with nullcontext():
            yield
        return
    from django.db import connection

    spent: dict[str, tuple[float, int]] = {}

    def timed(execute: Any, sql: str, params: Sequence[Any], many: bool, context: Any) -> Any:
        begun = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            total, count = spent.get(sql[:90], (0.0, 0))
            spent[sql[:90]] = (total + time.perf_counter() - begun, count + 1)

    with connection.execute_wrapper(timed):
        yield
    for sql, (total, count) in sorted(spent.items(), key=lambda item: -item[1][0])[:12]:
        print(f"    {total / (ROUNDS + 5) * 1e3:7.2f} ms/turn {count:6} x  {sql}")


if __name__ == "__main__":
    sys.exit(main())
