"""Schedules of every second; tests/app/apps.py imports this only where a test says how many.

``DDJ_SCHEDULES`` is their number; ``DDJ_HOST_CLOCK`` is by how many seconds the clock of this
process's host is wrong.
"""

from __future__ import annotations

import os
import time

import time_machine

from django_durable_jobs import job, schedule

SCHEDULES, HOST_CLOCK = "DDJ_SCHEDULES", "DDJ_HOST_CLOCK"

if seconds := float(os.environ.get(HOST_CLOCK, "0")):
    time_machine.travel(time.time() + seconds, tick=True).start()


@job("timed.nothing")
def nothing() -> None:
    """Do nothing."""


def run() -> None:
    """Do nothing either."""


for number in range(int(os.environ[SCHEDULES])):
    name, overlap = f"timed.{number}", "allow" if number % 2 else "skip"
    if number % 3:
        schedule(name, every=1, job="timed.nothing", overlap=overlap)
    else:
        schedule(name, every=1, run=run, overlap=overlap)
schedule("timed.baseline", every=2, baseline="02:30", timezone="Europe/Vienna", run=run)
