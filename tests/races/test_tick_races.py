"""The leader's ticks and what others do to the same schedules at the same moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_durable_jobs.errors import AlreadyRunning
from django_durable_jobs.models import Job
from django_durable_jobs.registry import schedule
from django_durable_jobs.states import LIVE
from django_durable_jobs.ticker import Ticker
from django_durable_jobs.ticks import fire_now, pause_schedule
from tests.clockwork import Clockwork, at, clockwork, end, fired, jobs
from tests.racing import meanwhile, race

pytestmark = [pytest.mark.races, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def work(transactional_db: None) -> Iterator[Clockwork]:
    with clockwork() as each:
        yield each


def just_before_firing(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object]) -> list[object]:
    """Have something done elsewhere once the leader has decided, before it writes."""
    fire, done = Ticker._fire, []

    def do_and_fire(self: Ticker, *args: Any) -> None:
        if not done:
            done.append(meanwhile(deed)())
        fire(self, *args)

    monkeypatch.setattr(Ticker, "_fire", do_and_fire)
    return done


def test_a_run_begun_by_hand_at_that_moment_is_not_joined_by_a_tick(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule("s", cron="0 13 * * *", run=lambda: None, timezone="UTC")
    work.turn()
    done = just_before_firing(monkeypatch, lambda: fire_now("s"))
    work.go(at(13, 0, 1))
    assert len(done) == 1
    assert isinstance(done[0], Job)
    work.turn()
    assert (fired("s"), fired("s", "skipped")) == ([], [at(13)])
    assert [job.pk for job in jobs("s")] == [done[0].pk]


def test_a_schedule_paused_at_that_moment_does_not_fire(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule("s", cron="0 13 * * *", run=lambda: None, timezone="UTC")
    schedule("other", cron="0 13 * * *", run=lambda: None, timezone="UTC")
    work.turn()
    done = just_before_firing(monkeypatch, lambda: pause_schedule("s"))
    work.go(at(13, 0, 1))
    work.turn()
    assert len(done) == 1
    assert not isinstance(done[0], BaseException)
    assert (fired("s"), fired("other")) == ([], [at(13)])


def test_one_run_at_most_whether_the_leader_or_somebody_by_hand_is_first(work: Clockwork) -> None:
    schedule("s", cron="* * * * *", run=lambda: None, timezone="UTC")
    work.turn()
    for _ in range(12):
        work.clock.move_to(work.clock.value + timedelta(seconds=60.5))
        turned, by_hand = race(work.turn, lambda: fire_now("s"))
        assert not isinstance(turned, BaseException)
        assert isinstance(by_hand, (Job, AlreadyRunning))
        (job,) = Job.objects.filter(state__in=LIVE)
        end(job)
