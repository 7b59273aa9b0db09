"""Whatever is killed, stopped or cut off: the promises hold, and the check that says so can fail.

DDJ_CHAOS_SECONDS makes it last longer, DDJ_CHAOS_SEED plays a printed seed again.
"""

from __future__ import annotations

import os
import random

import pytest
from django.db import connection

from tests.chaos.storm import SECONDS, TRIAL, Storm
from tests.processes.harness import Workers

SEED = int(os.environ.get("DDJ_CHAOS_SEED") or random.randrange(1_000_000))

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(2 * SECONDS + 180),
]


def blow(workers: Workers, seconds: float, **environment: str) -> Storm:
    count = 3 if connection.vendor == "sqlite" else 4
    storm = Storm(workers, SEED, seconds, count, environment)
    storm.blow()
    print(f"\nstorm on {connection.vendor}, seed {SEED}, {seconds:g} s")
    print("  witnessed: " + ", ".join(f"{n} {name}" for name, n in sorted(storm.witnesses.items())))
    print(f"  violations: {len(storm.violations)}")
    for violation in storm.violations[:5]:
        print(f"    {violation}")
    return storm


def wanted(seconds: float) -> dict[str, int]:
    """Return how many of each must have been witnessed for a run of this length to count."""
    least = {
        "kill": 0.08,
        "zombies with a job": 0.04,
        "late settlements refused": 0.04,
        "started": 4.0 if TRIAL else 1.5,
        "cancelled": 0.2,
        "refused cancels": 0.2,
        "replaced": 0.1,
        "rolled back": 0.4,
        "repeated keys": 0.1,
        "samples": 0.5,
    }
    if connection.vendor != "sqlite":
        least["sessions"] = 0.04
    return {name: max(1, int(each * seconds)) for name, each in least.items()}


def test_no_promise_is_broken_in_a_storm(workers: Workers) -> None:
    storm = blow(workers, SECONDS)
    assert storm.violations == [], f"seed {SEED}"
    missing = {
        name: (storm.witnesses[name], least)
        for name, least in wanted(SECONDS).items()
        if storm.witnesses[name] < least
    }
    assert missing == {}, f"fault not observed (seed {SEED})"


def test_the_storm_is_noticed_where_the_fence_is_gone(workers: Workers) -> None:
    storm = blow(workers, min(SECONDS, 8), DDJ_UNFENCED="1")
    broken = {violation.split()[0] for violation in storm.violations}
    print(f"  broken: {', '.join(sorted(broken))}")
    assert "INV-1" in broken
