"""Measure speed beside peers and beside the database's own limit, all in one run.

    python benchmarks/run.py [--size small|full] [--only drain,write,enqueue,latency] [--json]

What is measured, and what not, is told in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import django  # noqa: E402

from benchmarks.report import Measurement, tables  # noqa: E402
from benchmarks.stage import Drained, GivenUp, Stage, stage  # noqa: E402
from benchmarks.subjects import (  # noqa: E402
    DURABLE,
    FLOOR,
    PROCRASTINATE,
    SUBJECTS,
    Subject,
)
from tests import databases  # noqa: E402

PARTS = ("drain", "write", "enqueue", "latency")


@dataclass(frozen=True)
class Size:
    """How much is measured: jobs for the fast and for the slow, enqueues, rounds."""

    fast: int
    slow: int
    enqueues: int
    pick_ups: int
    rounds: int
    quick: bool


SIZES = {
    "tiny": Size(fast=200, slow=50, enqueues=100, pick_ups=5, rounds=1, quick=True),
    "small": Size(fast=2_000, slow=400, enqueues=500, pick_ups=20, rounds=1, quick=True),
    "full": Size(fast=20_000, slow=3_000, enqueues=3_000, pick_ups=100, rounds=3, quick=False),
}


class Run:
    """The measurements of one run; what cannot be measured is told and left out."""

    def __init__(self, stage: Stage, size: Size, *, quiet_for: float) -> None:
        self.stage = stage
        self.size = size
        self.quiet_for = quiet_for
        self.found: list[Measurement] = []
        self.trouble: list[str] = []

    def drain(self, subject: Subject, variant: str = "", **how: Any) -> None:
        """Measure one worker on a full queue."""
        kind, slots = how.get("kind", "nothing"), how["slots"]
        quick = subject in (FLOOR, DURABLE) and (slots > 4 or not self.size.quick)
        count = (
            self.size.fast if quick else self.size.slow * (2 if subject in (FLOOR, DURABLE) else 1)
        )
        self._measure(
            "write" if kind == "write" else "drain",
            subject,
            variant,
            slots,
            lambda: self.stage.drain(
                subject,
                slots=slots,
                kind=kind,
                count=count,
                owners=how.get("owners", 0),
                lines=how.get("lines", False),
            ),
        )

    def enqueue(self, subject: Subject, verb: str) -> None:
        """Measure one thread that enqueues."""
        count = 10_000 if verb == "many" else self.size.enqueues

        def rate() -> float:
            self.stage.empty(subject)
            return float(count / self.stage.act(subject, verb, count))

        self._measure("enqueue", subject, verb, None, rate)

    def pick_up(self, subject: Subject) -> None:
        """Measure an idle worker."""
        self._measure(
            "latency", subject, "", None, lambda: self.stage.pick_up(subject, self.size.pick_ups)
        )

    def _measure(
        self, part: str, subject: Subject, variant: str, slots: int | None, once: Callable[[], Any]
    ) -> None:
        others = wait_for_quiet(self.quiet_for)
        label = " ".join(filter(None, [subject.label, variant, f"{slots} slots" if slots else ""]))
        print(f"  {part}: {label} …", end="", file=sys.stderr, flush=True)
        try:
            value = once()
        except GivenUp as error:
            print(" given up", file=sys.stderr)
            self.trouble.append(f"{part}: {label}: {error}")
            return
        each = value.microseconds if isinstance(value, Drained) else None
        value = value.rate if isinstance(value, Drained) else value
        rate = isinstance(value, float)
        shown = f"{value:,.0f}/s" if rate else f"{statistics.median(value):.2f} ms"
        shown += f", {each:,.0f} µs each" if each else ""
        print(f" {shown} (machine {others:.0%} busy before)", file=sys.stderr)
        self.found.append(
            Measurement(part, subject.name, variant, slots, value, each, others, os.getloadavg()[0])
        )


def wait_for_quiet(longest: float) -> float:
    """Wait, ``longest`` seconds at most, until others leave the machine; return their share."""
    deadline = time.monotonic() + longest
    while True:
        busy = _busy(0.2 if not longest else 1.0)
        if busy < 0.1 or time.monotonic() > deadline:
            return busy


def _busy(seconds: float) -> float:
    """Return which share of all CPUs was busy in the next ``seconds``; 0.0 where nobody tells."""

    def read() -> tuple[int, int]:
        fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    if not Path("/proc/stat").exists():
        return 0.0
    total, idle = read()
    time.sleep(seconds)
    later, idle_later = read()
    return 1 - (idle_later - idle) / max(later - total, 1)


def measure(run: Run, subjects: Iterable[Subject], parts: Iterable[str]) -> None:
    subjects = list(subjects)
    for _ in range(run.size.rounds):
        if "drain" in parts:
            for slots in (4, 10, 50):
                for subject in subjects:
                    run.drain(subject, slots=slots)
                if DURABLE in subjects:
                    if not run.size.quick or slots == 50:
                        run.drain(DURABLE, "with its lines", slots=slots, lines=True)
                    if not run.size.quick or slots == 50:
                        run.drain(DURABLE, "1,000 owners", slots=slots, owners=1_000)
                if not run.size.quick or slots == 50:
                    for subject in (DURABLE, PROCRASTINATE):
                        if subject in subjects:
                            run.drain(subject, "async", slots=slots, kind="nothing_async")
        if "write" in parts:
            for slots in (10,) if run.size.quick else (4, 10, 50):
                for subject in subjects:
                    run.drain(subject, slots=slots, kind="write")
        if "enqueue" in parts:
            for verb in ("one", "inside", "many"):
                for subject in subjects:
                    run.enqueue(subject, verb)
        if "latency" in parts:
            for subject in subjects:
                run.pick_up(subject)


def describe(stage: Stage, subjects: Iterable[Subject], database: str) -> dict[str, str]:
    settings = {
        name: stage.query(f"SHOW {name}")[0]
        for name in ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
    }
    return {
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "database": database + "".join(f", {name} {value}" for name, value in settings.items()),
        "software": f"Python {platform.python_version()}, Django {django.get_version()}, "
        + ", ".join(
            f"{subject.package} {subject.version}" for subject in subjects if subject != DURABLE
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--subjects", default="", help=f"of {', '.join(s.name for s in SUBJECTS)}")
    parser.add_argument(
        "--wait", type=float, default=0, help="seconds to wait for a quiet machine, each time"
    )
    parser.add_argument(
        "--json", nargs="?", const="", metavar="FILE", help="write a file too (default: in var/)"
    )
    options = parser.parse_args()
    parts = options.only.split(",")
    if wrong := set(parts) - set(PARTS):
        parser.error(f"--only {', '.join(sorted(wrong))}: accepted are {', '.join(PARTS)}")
    names = options.subjects.split(",") if options.subjects else [s.name for s in SUBJECTS]
    chosen = [subject for subject in SUBJECTS if subject.name in names and not subject.missing]
    try:
        with databases.postgres() as database, stage(database.settings) as place:
            return _run(options, parts, chosen, place, database.version)
    except databases.Unavailable as error:
        print(f"No PostgreSQL to measure on: {error}", file=sys.stderr)
        return 1


def _run(
    options: argparse.Namespace,
    parts: list[str],
    subjects: list[Subject],
    place: Stage,
    database: str,
) -> int:
    began = time.monotonic()
    facts = describe(place, subjects, database)
    for name, fact in facts.items():
        print(f"{name:<9} {fact}")
    for subject in SUBJECTS:
        if subject.missing:
            print(f"left out  {subject.label}: {subject.missing}")
    if ", fsync off" in facts["database"]:
        print("NOTE      fsync is off: every rate is higher than a durable server's.")
    sys.stdout.flush()
    for subject in subjects:
        place.migrate(subject)
    run = Run(place, SIZES[options.size], quiet_for=options.wait)
    measure(run, subjects, parts)
    print("\n".join(tables(run.found)))
    for trouble in run.trouble:
        print(f"\nNOT MEASURED {trouble}")
    print(f"\n{time.monotonic() - began:.0f} s; load now {os.getloadavg()[0]:.2f}")
    if options.json is not None:
        file = Path(options.json or ROOT / "var" / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        found = [measurement.as_dict() for measurement in run.found]
        file.write_text(json.dumps({**facts, "size": options.size, "found": found}, indent=1))
        print(f"written to {os.path.relpath(file)}")
    return 1 if run.trouble else 0


if __name__ == "__main__":
    sys.exit(main())
