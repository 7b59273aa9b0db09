"""Whoever fires, and whatever happens to them: each tick has one job at most, and none is lost.

DDJ_SCHEDULE_SECONDS makes the drill last longer, with 200 schedules, and has it judge how long
nobody led.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from django.db import connection

from django_durable_jobs.db import current_clock
from django_durable_jobs.models import Job, Leader, Schedule, TickClaim, TickGap
from django_durable_jobs.states import TickOutcome
from tests import databases
from tests.processes.harness import WorkerProcess, Workers, freeze, until

SECONDS = float(os.environ.get("DDJ_SCHEDULE_SECONDS", "0"))

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(2 * SECONDS + 120),
]

SECOND = timedelta(seconds=1)


def now() -> datetime:
    return current_clock().now(connection)


class Cluster:
    """Three workers that take turns in leading, and what is known of who led when."""

    def __init__(self, workers: Workers, schedules: int, *, lease: float) -> None:
        self.workers = workers
        self.lease = lease
        self.schedules = schedules
        self.without: dict[str, float] = {}  # for how many seconds nobody led, by what was done

    def start(self, *arguments: str, **environment: str) -> WorkerProcess:
        return self.workers.start(
            "--concurrency=10",
            *arguments,
            environment={"DDJ_SCHEDULES": str(self.schedules), **environment},
            LEASE=self.lease,
            HEARTBEAT=self.lease / 5,
        )

    def leader(self) -> tuple[WorkerProcess, Leader]:
        """Return who leads, once somebody does."""
        lead = until(
            lambda: Leader.objects.filter(worker__isnull=False).first(), "a leader", seconds=60
        )
        begun = [each for each in self.workers.all if each.events("start")]
        return next(each for each in begun if each.id == lead.worker), lead

    def succeeded(self, what: str, lead: Leader, at: datetime) -> Leader:
        """Return the next leader's row, once there is one; note for how long there was none."""
        following = until(
            lambda: Leader.objects.filter(epoch__gt=lead.epoch, worker__isnull=False).first(),
            "the next leader",
            seconds=60,
        )
        assert following.acquired_at is not None
        self.without[what] = (following.acquired_at - at).total_seconds()
        return following

    def go_on(self, seconds: float) -> None:
        """Wait until the ticks of so many more seconds have become jobs."""
        goal = now() + timedelta(seconds=seconds)
        fired = TickClaim.objects.filter(name="timed.1", scheduled_at__gte=goal)
        until(fired.exists, f"{seconds:g} s of ticks", seconds=2 * seconds + 60)


@dataclass
class Account:
    """What became of all ticks of all schedules of every second."""

    fired: int
    skipped: int
    missed: int
    late: list[float]


def settle_accounts() -> Account:
    """Check every tick from a schedule's first to its last: one of fired, skipped or in a gap."""
    rows = {row.name: row for row in Schedule.objects.all()}
    fired: dict[str, list[TickClaim]] = {name: [] for name in rows}
    skipped = 0
    seen: dict[str, Counter[datetime]] = {name: Counter() for name in rows}
    late = []
    for tick in TickClaim.objects.order_by("scheduled_at"):
        seen[tick.name][tick.scheduled_at] += 1
        late.append((tick.claimed_at - tick.scheduled_at).total_seconds())
        if tick.outcome == TickOutcome.FIRED:
            fired[tick.name].append(tick)
        else:
            assert (tick.outcome, tick.reason) == ("skipped", "overlap")
            skipped += 1
    missed = 0
    for gap in TickGap.objects.all():
        step = steps(rows[gap.name])
        assert gap.reason == "downtime"
        assert gap.count == (gap.last - gap.first) / step + 1
        missed += gap.count
        seen[gap.name].update(gap.first + n * step for n in range(gap.count))
    for name, row in rows.items():
        assert row.next_fire is not None
        ticks, step = sorted(seen[name]), steps(row)
        # The oracle: the grid, without a hole, as far as what is due next.
        first = ticks[0] if row.anchor is None else row.anchor + step
        count = (row.next_fire - first) // step
        assert ticks == [first + n * step for n in range(count)], name
        assert set(seen[name].values()) == {1}, name
        assert row.fires == len(fired[name])
    assert min(late) >= 0, "a tick was early"
    check_jobs([tick for ticks in fired.values() for tick in ticks])
    return Account(sum(map(len, fired.values())), skipped, missed, late)


def steps(row: Schedule) -> timedelta:
    return 2 * SECOND if row.name == "timed.baseline" else SECOND


def check_jobs(fired: list[TickClaim]) -> None:
    """Check that each tick that fired has one job of its own, and that there is no other."""
    jobs = dict(Job.objects.values_list("pk", "idempotency_key"))
    assert len(jobs) == len(fired)
    for tick in fired:
        assert tick.job_id in jobs
        assert jobs[tick.job_id] == f"tick:{tick.name}:{tick.scheduled_at.isoformat()}"
    assert len({tick.job_id for tick in fired}) == len(fired)


def tell(what: str, cluster: Cluster, account: Account) -> None:
    p99 = statistics.quantiles(account.late, n=100)[98] if len(account.late) > 1 else 0.0
    median = statistics.median(account.late)
    without = ", ".join(f"{seconds:.2f} s ({how})" for how, seconds in cluster.without.items())
    print(
        f"\n{what} on {connection.vendor}, {cluster.schedules} schedules, lease {cluster.lease:g}:"
        f" {account.fired} fired, {account.skipped} skipped, {account.missed} missed\n"
        f"  claimed {median * 1e3:.0f} ms (median), {p99 * 1e3:.0f} ms (p99) after the tick\n"
        f"  nobody led for {without}"
    )


def test_leaders_that_are_killed_stopped_and_ended_lose_no_tick_and_fire_none_twice(
    workers: Workers,
) -> None:
    schedules = {"postgresql": 200, "mysql": 60, "sqlite": 20}[connection.vendor] if SECONDS else 20
    cluster = Cluster(workers, schedules, lease=5 if SECONDS else 3)
    for _ in range(3):
        cluster.start()
    stretch = SECONDS / 4 or 1.0
    cluster.go_on(stretch)

    killed, lead = cluster.leader()
    killed.kill()
    following = cluster.succeeded("killed", lead, now())
    assert lead.expires_at is not None
    assert following.acquired_at is not None
    assert following.acquired_at >= lead.expires_at  # and it was renewed since, maybe
    cluster.start()
    cluster.go_on(stretch)

    stopped, lead = cluster.leader()
    freeze(stopped.pid)
    following = cluster.succeeded("stopped", lead, now())
    cluster.go_on(1)
    written = claimed_by(stopped.id)
    stopped.signal(signal.SIGCONT)
    until(lambda: "leadership lost" in stopped.output, "its notice that it leads no longer")
    cluster.go_on(stretch)
    assert claimed_by(stopped.id) == written
    assert Leader.objects.get().epoch == following.epoch

    ended, lead = cluster.leader()
    ended.signal(signal.SIGTERM)
    cluster.succeeded("ended", lead, now())
    assert ended.ended() == 0
    cluster.go_on(stretch)

    left = [each for each in workers.all if not each.is_over()]
    for each in left:
        each.signal(signal.SIGTERM)
    assert [each.ended() for each in left] == [0] * len(left)
    account = settle_accounts()
    tell("three workers", cluster, account)
    assert TickGap.objects.filter(name="timed.1").exists(), "nobody was missed"
    assert len(account.late) > schedules * 3 * stretch
    if SECONDS:
        assert max(cluster.without.values()) <= cluster.lease + 1


def claimed_by(worker: UUID) -> int:
    return TickClaim.objects.filter(claimed_by=worker).count()


def in_another_zone(offset: str) -> dict[str, str]:
    """Return the environment in which MySQL's sessions have this time zone."""
    environment = databases.subprocess_environment()
    if connection.vendor != "mysql":
        return {}
    settings = json.loads(environment[databases.VARIABLE])
    settings["OPTIONS"] = {**settings["OPTIONS"], "init_command": f"SET time_zone = '{offset}'"}
    return {databases.VARIABLE: json.dumps(settings)}


def test_hosts_whose_clocks_are_ninety_seconds_apart_agree_on_every_tick(
    workers: Workers,
) -> None:
    cluster = Cluster(workers, 6, lease=2)
    alone = cluster.start("--no-schedules").ready()
    until(
        lambda: alone.row().heartbeat_at > alone.row().started_at + SECOND, "a second of its life"
    )
    assert (Leader.objects.count(), Schedule.objects.count()) == (0, 0)
    behind = cluster.start(DDJ_HOST_CLOCK="-45", **in_another_zone("+05:00")).ready()
    told = datetime.fromisoformat(behind.events("start")[0]["time"])
    assert (told - behind.row().started_at).total_seconds() < -40, "its clock is right"
    cluster.go_on(1)
    ahead = cluster.start(DDJ_HOST_CLOCK="45", **in_another_zone("-03:00")).ready()
    assert behind.stop() == 0
    cluster.go_on(1)
    again = cluster.start(DDJ_HOST_CLOCK="-45").ready()
    ahead.kill()
    cluster.go_on(1)
    assert again.stop() == 0
    account = settle_accounts()
    tell("skewed clocks", cluster, account)
    assert all(claimed_by(each.id) > 0 for each in (behind, ahead, again))
    assert claimed_by(alone.id) == 0  # it was told not to lead
    # By the database's clock: one's own would make it 45 seconds more, or early.
    assert max(account.late) < 30
