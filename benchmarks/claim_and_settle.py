"""How fast are a claim and a settlement by themselves, without a worker or a handler?

    python benchmarks/claim_and_settle.py [--db sqlite,postgres,mariadb] [--profile]

Prints, for 4, 10 and 50 slots, jobs per second of claim, load and settle in a tight loop on one
connection: as two transactions, and as a worker does it, in one (settle, then claim the next).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import cpu  # noqa: E402
from tests import databases  # noqa: E402

SECONDS = 4.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default=",".join(databases.NAMES))
    parser.add_argument("--profile", action="store_true", help="print where Python's time goes")
    options = parser.parse_args()
    if databases.VARIABLE in os.environ:
        return measure(profile=options.profile)
    worst = 0
    for name in options.db.split(","):
        with databases.OPENERS[name]() as database:
            print(database.version, flush=True)
            environment = os.environ | {
                databases.VARIABLE: json.dumps(database.settings),
                "DJANGO_SETTINGS_MODULE": "tests.settings",
            }
            command = [sys.executable, __file__, *sys.argv[1:]]
            worst = max(worst, subprocess.call(command, env=environment))
    return worst


def measure(*, profile: bool) -> int:
    import django

    django.setup()
    from django.db import connection

    from django_durable_jobs.db import own_connections
    from tests import crowd

    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    profiler = cProfile.Profile()
    try:
        with own_connections("default"):
            for slots in (4, 10, 50):
                for together in (False, True):
                    crowd.empty()
                    crowd.add_jobs(100_000, owners=10_000, low=1)
                    crowd.analyze()
                    if profile:
                        profiler.enable()
                    done, seconds, busy = loop(slots, together=together)
                    profiler.disable()
                    ways = "one transaction " if together else "two transactions"
                    print(
                        f"  {slots:3} slots, {ways} {done / seconds:8,.0f} jobs/s; a turn takes"
                        f" {seconds / done * slots * 1e3:.2f} ms, of which the processors"
                        f" {busy / done * slots * 1e3:.2f} ({busy / done * 1e6:.0f} µs a job)",
                        flush=True,
                    )
        if profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    finally:
        connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)
    return 0


def loop(slots: int, *, together: bool) -> tuple[int, float, float]:
    """Claim and settle for a while; return how many jobs, the seconds, and those at work."""
    from django.db import connections

    from django_durable_jobs.claims import ClaimRequest, claim, load, settle
    from django_durable_jobs.db import Outcome, Taking, transaction

    request = ClaimRequest(
        namespace="default",
        worker=uuid.uuid4(),
        slots=slots,
        types=frozenset({"test.job"}),
        lease=30,
        owner_cap=1,
    )
    held: list[Taking] = []
    done = 0
    now = cpu.clock(connections["default"])
    begun, begun_busy = time.perf_counter(), now()
    while time.perf_counter() - begun < SECONDS:
        outcomes = [Outcome(job_id=t.job_id, claim_id=t.claim_id, edge="complete") for t in held]
        if together:
            with transaction("default") as connection:
                done += len(settle(connection, outcomes))
                held = claim(connection, request).takings
        else:
            with transaction("default") as connection:
                done += len(settle(connection, outcomes))
            with transaction("default") as connection:
                held = claim(connection, request).takings
        load(connection, held)
    return done, time.perf_counter() - begun, now() - begun_busy


if __name__ == "__main__":
    sys.exit(main())
