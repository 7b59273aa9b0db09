"""What the jobs do, the same for every subject."""

import os
import time


def write(number: int) -> None:
    """Make one write through the ORM, in autocommit."""
    from .models import Mark

    Mark.objects.create(number=number)


def stamp(number: int) -> None:
    """Note when this line was reached."""
    now = time.time_ns()
    with open(os.environ["BENCH_STAMPS"], "a") as file:
        file.write(f"{number} {now}\n")
