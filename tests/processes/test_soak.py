"""The soak of benchmarks/soak.py, in small: a worker stays as it is while it runs jobs."""

from __future__ import annotations

import math
import sys

import pytest

from benchmarks import soak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


def sample(jobs: int, **others: float) -> soak.Sample:
    values = {
        "rate": 1_000.0,
        "processor": 500.0,
        "memory": 80.0,
        "threads": 15,
        "descriptors": 20,
        "sockets": 5,
        "connections": 4,
    }
    return soak.Sample(jobs=jobs, **(values | others))  # type: ignore[arg-type]


@pytest.mark.django_db(transaction=True)
@pytest.mark.processes
@pytest.mark.slow
def test_a_worker_stays_as_it_is_while_it_runs_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    # Time, also a processor's, is for the benchmark: so few jobs on a busy machine tell nothing.
    monkeypatch.setitem(soak.GROWTH, "processor", math.inf)
    lines: list[str] = []
    problems = soak.soak(2_000, 500, slots=10, tell=lines.append)
    assert problems == [], "\n".join(lines)
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("memory", 89.0, "the memory has grown to 1.11 times"),
        ("processor", 700.0, "the processor time a job has grown to 1.40 times"),
        ("threads", 17, "the threads have grown from 15 to 17"),
        ("descriptors", 24, "the descriptors have grown from 20 to 24"),
        ("sockets", 7, "the sockets have grown from 5 to 7"),
        ("connections", 6, "the connections have grown from 4 to 6"),
    ],
)
def test_the_soak_sees_what_grows(name: str, value: float, problem: str) -> None:
    flat = [sample(1_000), sample(2_000)]
    assert soak._grown([*flat, sample(3_000), sample(4_000)]) == []
    (found,) = soak._grown([*flat, sample(3_000, **{name: value}), sample(4_000, **{name: value})])
    assert problem in found
