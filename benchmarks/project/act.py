"""Enqueue for one subject, as a project would; print what it took as JSON.

act.py fill KIND COUNT OWNERS    enqueue in bulk; OWNERS 0: without owners
act.py one COUNT                 enqueue one by one, each committed by itself
act.py inside COUNT              enqueue one by one, a hundred in a transaction
act.py many COUNT                enqueue in one call
act.py trickle COUNT             enqueue at random moments; print when each was committed
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import django
from django.conf import settings
from django.db import transaction

One = Callable[[str, int], Any]
Many = Callable[[str, int, int], Any]


def durable() -> tuple[One, Many]:
    from load import jobs

    from django_durable_jobs import enqueue_many

    def many(kind: str, count: int, owners: int) -> None:
        enqueue_many(
            {
                "type": getattr(jobs, kind),
                "payload": {"number": number},
                "owner_id": f"owner-{number % owners}" if owners else "",
            }
            for number in range(count)
        )

    return lambda kind, number: getattr(jobs, kind).enqueue(number), many


def procrastinate() -> tuple[One, Many]:
    from load import tasks

    def many(kind: str, count: int, owners: int) -> None:
        getattr(tasks, kind).batch_defer(*({"number": number} for number in range(count)))

    return lambda kind, number: getattr(tasks, kind).defer(number=number), many


def ox() -> tuple[One, Many]:
    from django_ox.bulk import enqueue_many
    from load import ox as tasks

    def many(kind: str, count: int, owners: int) -> None:
        enqueue_many(getattr(tasks, kind), [((number,), {}) for number in range(count)])

    return lambda kind, number: getattr(tasks, kind).enqueue(number), many


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def inside(one: One, count: int) -> None:
    for start in range(0, count, 100):
        with transaction.atomic():
            for number in range(start, min(start + 100, count)):
                one("nothing", number)


def trickle(one: One, count: int) -> dict[int, int]:
    """Return the moment just before each COMMIT, in nanoseconds of the host's clock."""
    random.seed(1)
    moments = {}
    for number in range(count):
        time.sleep(random.uniform(0.05, 0.15))
        with transaction.atomic():
            one("stamp", number)
            moments[number] = time.time_ns()
    return moments


def main(verb: str, *args: str) -> object:
    one, many = {"durable": durable, "procrastinate": procrastinate, "ox": ox}[settings.SUBJECT]()
    if verb == "fill":
        return timed(lambda: many(args[0], int(args[1]), int(args[2])))
    count = int(args[0])
    if verb == "trickle":
        return trickle(one, count)
    if verb == "many":
        return timed(lambda: many("nothing", count, 0))
    for number in range(20):  # opens the connection, imports what is imported late
        one("nothing", number)
    if verb == "inside":
        return timed(lambda: inside(one, count))
    assert verb == "one"
    return timed(lambda: [one("nothing", number) for number in range(count)])


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    django.setup()
    print(json.dumps(main(*sys.argv[1:])))
