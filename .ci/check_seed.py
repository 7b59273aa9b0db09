"""Check that docs/seed.md and the tests of the seed's behaviour agree: `python .ci/check_seed.py`.

Every test named in a row exists, every test in tests/seed is named in a row, every row has a test
or a reason, what is marked as changed is marked so on both sides, and nothing of the inventory
below is without a row.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "seed.md"
TESTS = ROOT / "tests" / "seed"
OWN_TEST = "test_seed_map.py"  # tests this script

HEADINGS = ["seed", "what it does", "here", "why", "tests"]
VERDICTS = ("**kept**", "**changed**", "**dropped**")


def _words(text: str) -> list[str]:
    return text.split()


FUNCTIONS = _words("""
    copy requiredString safeValue attachDurableScheduler persist recover ensureReady findJob
    findIdempotency validateSpec enqueue cancel replaceQueued activeOwnerCount isEligible
    dueByFairOwner updateExecution settle requeueUnstarted dispatch tick stopTimer scheduleTimer
    registerHandler start shutdown getJob listJobs getReceipt status
    nextRunTime parse parseField matches parseCron nextCronFire nextBaselineFire _computeNextRun
    schedule register create stop list getStatus pruneTickClaims SchedulerError
    _emit _isLeaderHere _fireOnce _runFire _arm _maybePruneTickClaims _resetForTest
    identity attachLoopDurableSchedule isMultiUser ownerFor jobsFor queuedFor spec
    matchesOccurrence cancelQueued syncRecord sync canRun wake
""")
OPTIONS = _words("""
    ctx.namespace ctx.now ctx.makeId ctx.setTimer ctx.clearTimer ctx.maxTimerDelay
    ctx.globalConcurrency ctx.perOwnerConcurrency ctx.store ctx.filePath ctx.storageDir
    spec.name spec.cron spec.every spec.baseline spec.timezone spec.job spec.run spec.payload
    spec.enqueueOpts
    opts.jobs opts.cluster opts.audit opts.maxJobMs opts.tickRetentionMs opts.pruneIntervalMs
    ctx.scheduler ctx.registry ctx.projectId ctx.isMultiUser ctx.authorize ctx.canRun
""")
# What calls return or hand to handlers, wherever in a row it is told of.
VALUES = _words("""
    started closed healthy error active claimId recordMetadata recordReceipt canRun ownerCursor
    server_restarted_after_claim scheduler_shutdown SCHEDULER_STORE_CORRUPT
    exprDesc lastRun lastFinish lastError nextRun running fires misses nonLeaderSkips
    tickClaimLost isLeader aggregate total withErrors totalFires totalMisses
    scheduler.start scheduler.stop scheduler.task.success scheduler.task.failure
    scheduler.task.skipped scheduler.task.watchdog scheduler.tick.lost scheduler.tick.error
    scheduler.tick.pruned durationMs viaJob tickKey claimedBy rowsDeleted olderThanUnix
    record_requires_owner record_disabled_or_unscheduled record_schedule_changed record_deleted
    local-user loop-record prepareDurableOccurrence triggerDurableOccurrence dispatching dispatched
    completeDurableOccurrence recordId occurrenceAt
""")
ERRORS = [
    "is required",
    "is too long",
    "must be JSON serializable",
    "is too large",
    "Scheduler store contains invalid durable data",
    "Scheduler is shut down",
    "runAt must be a non-negative timestamp",
    "target is required",
    "idempotencyKey was already used with different job data",
    "job id already exists",
    "Only queued jobs can be cancelled",
    "Only queued jobs can be replaced",
    "idempotencyKey already exists",
    "Job execution is no longer active",
    "handler result is too large",
    "execution metadata is too large",
    "handler type is required",
    "handler must be a function",
    "canRun must be a function",
    "handler already registered for",
    "cron expression must be a non-empty string",
    "cron expression must have 5 fields",
    "empty term",
    "bad step",
    "exceeds field range",
    "out of range",
    "produced no fire within 1 year",
    "baseline must be HH:MM",
    "is not a valid 24h time",
    "produced no fire within 24h+",
    "schedule all tasks before calling start()",
    "requires a spec object",
    "spec.name is required",
    "is already scheduled",
    "spec must set exactly one of cron / every",
    "spec.every must be a number ≥ 1000 ms",
    "spec must set exactly one of job / run",
    "spec.job requires opts.jobs",
    "unknown IANA timezone",
    "name must be a non-empty string",
    "intervalMs must be a finite number ≥ 1000",
    "fn must be a function",
    "no task '",
    "The interrupted occurrence could not be reconciled",
    "The scheduled occurrence could not be normalized",
    "The scheduled record was deleted",
    "The scheduled occurrence is stale",
    "The scheduled record owner changed",
    "The scheduled record owner is no longer authorized",
    "The scheduled occurrence could not be reserved",
    "The next scheduled occurrence could not be stored after dispatch",
]


@dataclass(frozen=True)
class Row:
    """One row of the page, and the line that it stands in."""

    line: int
    seed: str
    does: str
    here: str
    why: str
    tests: tuple[str, ...]

    @property
    def verdict(self) -> str:
        return next((v for v in VERDICTS if self.here.startswith(v)), "")


def rows_of(text: str) -> Iterator[Row]:
    """Yield the rows of every table of the page."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells == HEADINGS or set(line) <= set("|-: "):
            continue
        if len(cells) != len(HEADINGS):
            raise ValueError(f"line {number}: {len(cells)} cells instead of {len(HEADINGS)}")
        seed, does, here, why, tests = cells
        yield Row(number, seed, does, here, why, tuple(re.findall(r"`(\w+)`", tests)))


def tests_of(folder: Path) -> dict[str, str]:
    """Return the docstring of every test in the folder, by name."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("test_*.py")):
        if path.name == OWN_TEST:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if function and node.name.startswith("test_"):
                if node.name in found:
                    raise ValueError(f"{path.name}: there is another {node.name}")
                found[node.name] = ast.get_docstring(node) or ""
    return found


def problems_of(rows: list[Row], tests: Mapping[str, str]) -> list[str]:
    """Return what is wrong, a sentence each."""
    found = []
    for row in rows:
        where = f"line {row.line} ({row.seed})"
        found += [f"{where}: there is no {name}" for name in row.tests if name not in tests]
        if not row.verdict:
            found.append(f"{where}: says none of {', '.join(VERDICTS)}")
        if not (row.tests or row.why):
            found.append(f"{where}: has neither a test nor a reason")
        shown = any(is_change(tests.get(name, "")) for name in row.tests)
        if row.verdict == "**changed**" and row.tests and not shown:
            found.append(f"{where}: changed, but no test of it says so")
    named = {name for row in rows for name in row.tests}
    found += [f"{name} is in no row" for name in sorted(tests.keys() - named)]
    changed = {name for row in rows if row.verdict == "**changed**" for name in row.tests}
    found += [
        f"{name} shows a change, but none of its rows says so"
        for name in sorted(tests)
        if name in named and is_change(tests[name]) and name not in changed
    ]
    return found + missing(rows)


def is_change(docstring: str) -> bool:
    return docstring.startswith("changed:")


def missing(rows: list[Row]) -> list[str]:
    """Name what the inventory has and no row tells of."""
    heads = " ".join(row.seed for row in rows)
    told = " ".join(f"{row.seed} {row.does}" for row in rows)
    found = [f"no row for {name}" for name in FUNCTIONS + OPTIONS if f"`{name}`" not in heads]
    found += [f"no row tells of {name}" for name in VALUES if not re.search(rf"\b{name}\b", told)]
    return found + [f'no row tells of the error "{text}"' for text in ERRORS if text not in told]


def main() -> int:
    """Print what is wrong, or how much was checked; return the exit code."""
    rows = list(rows_of(PAGE.read_text(encoding="utf-8")))
    tests = tests_of(TESTS)
    problems = problems_of(rows, tests)
    for problem in problems:
        print(f"{PAGE.relative_to(ROOT)}: {problem}", file=sys.stderr)
    if not problems:
        print(f"{PAGE.relative_to(ROOT)}: {len(rows)} rows, {len(tests)} tests, all accounted for")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
