"""Microseconds for the next fire of ten typical expressions: ours, croniter, cronsim.

    python benchmarks/recurrence.py

Each is asked for the next fire after each of some hundred moments of two years, in New York, as a
scheduler asks: from any moment, not from fire to fire. Ours and croniter keep the parsed
expression; cronsim has no such call, so it parses each time (`cronsim, step` goes from fire to
fire instead, which is all that it can do without). Processor time, the best of some rounds.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import geometric_mean
from zoneinfo import ZoneInfo

from croniter import croniter
from cronsim import CronSim
from django.conf import settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from django_durable_jobs.recurrence import Cron, Every

EXPRESSIONS = [
    "* * * * *",
    "*/5 * * * *",
    "0 * * * *",
    "0 2 * * *",
    "30 2 * * 1-5",
    "*/15 9-17 * * 1-5",
    "0 0 1 * *",
    "0 0 13 * 5",
    "0 0 1 1 *",
    "0 0 29 2 *",
]
ZONE = "America/New_York"
MOMENTS = 300
ROUNDS = 7


def moments() -> list[datetime]:
    chance = random.Random(20261130)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [start + timedelta(seconds=chance.randrange(2 * 365 * 86_400)) for _ in range(MOMENTS)]


def microseconds(call: Callable[[datetime], object], times: list[datetime]) -> float:
    """Return the processor time of one call: the best round's mean."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        for moment in times:
            call(moment)
        best = min(best, (time.process_time_ns() - started) / len(times) / 1_000)
    return best


def measured(expression: str, utc: list[datetime], local: list[datetime]) -> Iterator[float]:
    cron = Cron(expression, ZONE)
    theirs = croniter(expression, local[0], ret_type=datetime)
    stepping = CronSim(expression, local[0])
    yield microseconds(cron.next_fire, utc)
    yield microseconds(lambda moment: theirs.get_next(start_time=moment), local)
    yield microseconds(lambda moment: next(CronSim(expression, moment)), local)
    yield microseconds(lambda moment: next(stepping), local[:20])


def main() -> None:
    if not settings.configured:
        settings.configure(TIME_ZONE=ZONE, USE_TZ=True)
    utc = moments()
    local = [moment.astimezone(ZoneInfo(ZONE)) for moment in utc]
    names = ["ours", "croniter", "cronsim", "cronsim, step"]
    print(f"{'next fire, µs a call':<20} " + "".join(f"{name:>14}" for name in names))
    rows = []
    for expression in EXPRESSIONS:
        row = list(measured(expression, utc, local))
        rows.append(row)
        print(f"{expression:<20} " + "".join(f"{value:>14.1f}" for value in row))
    ratios = [geometric_mean(row[peer] / row[0] for row in rows) for peer in range(4)]
    print(f"{'to ours (geom. mean)':<20} " + "".join(f"{ratio:>14.1f}" for ratio in ratios))

    print("\nother calls of ours, µs")
    until = utc[0] + timedelta(days=365)
    every = Every(300, "02:30", ZONE)
    for name, call in {
        "parse `30 2 * * 1-5`": lambda moment: Cron("30 2 * * 1-5", ZONE),
        "Every(300, baseline).next_fire": every.next_fire,
        "Every(300, anchor).next_fire": Every(300, anchor=utc[0]).next_fire,
        "last fire of `0 2 * * *` in a year": lambda moment: Cron("0 2 * * *", ZONE).last_fire(
            utc[0], until
        ),
        "count 10,000 of `* * * * *`": lambda moment: Cron("* * * * *", ZONE).count(
            utc[0], until, 10_000
        ),
    }.items():
        print(f"{name:<40} {microseconds(call, utc[:50]):>10.1f}")
    print(f"\nPython {sys.version.split()[0]}, {os.cpu_count()} cores, {MOMENTS} moments")


if __name__ == "__main__":
    main()
