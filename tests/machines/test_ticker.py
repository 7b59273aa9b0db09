"""The ticker: which ticks become jobs, and what is written of those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_durable_jobs import cancel, requeue, ticker
from django_durable_jobs.errors import InvalidJob
from django_durable_jobs.models import Job, Schedule, TickClaim
from django_durable_jobs.registry import handlers, schedule, schedules
from django_durable_jobs.states import State
from django_durable_jobs.ticks import LeadershipLost, pause_schedule, resume_schedule
from tests.clockwork import Clockwork, at, clockwork, end, fired, jobs, missed, row
from tests.hearing import Ear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def work(transactional_db: None) -> Iterator[Clockwork]:
    with clockwork() as each:
        yield each


def declare(name: str = "s", **options: Any) -> None:
    """Declare a schedule of a function of its own, in place of what there was by this name."""
    old = schedules.get(name)
    if old is not None:
        schedules.remove(old)
        handler = handlers.get(f"schedule:{name}")
        assert handler is not None
        handlers.remove(handler)
    schedule(name, run=lambda: None, timezone="UTC", **options)


# Firing


def test_a_tick_becomes_a_job_with_its_claim(work: Clockwork) -> None:
    declare(cron="*/5 * * * *", max_run=77)
    work.turn()
    assert row("s").next_fire == at(12, 5)
    assert work.go(at(12, 4, 59)) == 1
    assert jobs("s") == []
    work.go(at(12, 5))

    (job,) = jobs("s")
    assert (job.type, job.state) == ("schedule:s", State.QUEUED)
    assert job.idempotency_key == "tick:s:2026-05-04T12:05:00+00:00"
    assert job.target == {"kind": "schedule", "id": "s"}
    assert (job.run_at, job.timeout) == (at(12, 5), 77)
    tick = TickClaim.objects.get()
    assert (tick.scheduled_at, tick.outcome, tick.open) == (at(12, 5), "fired", True)
    assert (tick.claimed_by, tick.claimed_at) == (work.worker, at(12, 5))
    kept = row("s")
    assert (kept.next_fire, kept.last_run, kept.last_job_id) == (at(12, 10), at(12, 5), job.pk)
    assert (kept.fires, kept.misses, kept.running) == (1, 0, True)


def test_a_schedule_of_a_declared_job_enqueues_it_with_the_options_of_enqueue(
    work: Clockwork,
) -> None:
    schedule(
        "s", cron="* * * * *", job="ledger.work", payload={"seconds": 1}, owner_id="acme",
        project_id="p", target={"kind": "shop", "id": "7"}, priority=5, queue="slow",
        meta={"label": "x"},
    )  # fmt: skip
    work.turn()
    work.go(at(12, 1))
    (job,) = jobs("s")
    assert (job.type, job.payload, job.owner_id) == ("ledger.work", {"seconds": 1}, "acme")
    assert (job.project_id, job.target) == ("p", {"kind": "shop", "id": "7"})
    assert (job.priority, job.queue, job.meta["label"]) == (5, "slow", "x")


def test_an_interval_counts_from_when_it_was_first_stored_whoever_leads(work: Clockwork) -> None:
    declare(every=90, overlap="allow")
    work.turn()
    work.walk(at(12, 10), step=1)
    expected = [at(12, 1, 30) + n * timedelta(seconds=90) for n in range(6)]
    assert fired("s") == expected
    work.go(40)
    successor = Clockwork(work.clock)
    successor.walk(at(12, 14), step=1)
    assert fired("s")[6:] == [at(12, 10, 30), at(12, 12), at(12, 13, 30)]


def test_an_interval_has_its_ticks_on_whole_seconds(work: Clockwork) -> None:
    """People read and type them: to make up for one that was missed, for example."""
    work.clock.advance(0.000_001)
    declare(every=90)
    work.turn()
    assert row("s").next_fire == at(12, 1, 31)


def test_a_changed_interval_counts_from_the_change(work: Clockwork) -> None:
    declare(every=3_600)
    work.turn()
    work.go(at(12, 30))
    declare(every=1_800)
    work.start()
    work.turn()
    assert row("s").next_fire == at(13, 0)
    assert fired("s") == []


def test_an_edit_never_fires_a_tick_older_than_itself(work: Clockwork) -> None:
    declare(cron="0 13 * * *")
    work.turn()
    work.clock.move_to(at(13, 0, 5))
    declare(cron="30 12 * * *")
    work.start()
    work.turn()
    assert fired("s") == []
    assert row("s").next_fire == at(12, 30, day=5)


def test_what_does_not_move_ticks_may_be_edited_while_one_is_due(work: Clockwork) -> None:
    declare(cron="0 13 * * *")
    work.turn()
    work.clock.move_to(at(13, 0, 5))
    declare(cron="0 13 * * *", overlap="allow", max_run=5)
    work.start()
    work.turn()
    assert fired("s") == [at(13)]


def test_nothing_is_written_while_nothing_changes(
    work: Clockwork, django_assert_max_num_queries: Any
) -> None:
    declare(cron="0 13 * * *")
    work.turn()
    before = list(Schedule.objects.values())
    work.go(at(12, 30))
    work.start()
    assert list(Schedule.objects.values()) == before
    work.turn()
    with django_assert_max_num_queries(2):
        work.turn()


def test_jitter_delays_the_job_and_leaves_the_tick_where_it_was(work: Clockwork) -> None:
    for name in ("a", "b"):
        declare(name, cron="0 13 * * *", jitter=600)
    work.turn()
    work.go(at(13))
    ((one,), (other,)) = jobs("a"), jobs("b")
    for name, job in (("a", one), ("b", other)):
        assert fired(name) == [at(13)]
        assert at(13) <= job.run_at < at(13, 10)
    assert one.run_at != other.run_at


def test_a_schedule_fires_between_its_start_and_its_end(work: Clockwork) -> None:
    declare(cron="0 * * * *", start=at(14), end=at(16), overlap="allow")
    work.turn()
    work.walk(at(20), step=600)
    assert fired("s") == [at(14), at(15), at(16)]
    assert row("s").next_fire is None
    assert missed("s") == []


def test_an_interval_with_a_start_has_a_tick_right_there(work: Clockwork) -> None:
    declare(every=3_000, start=at(14), overlap="allow")
    work.turn()
    work.walk(at(15, 30), step=50)
    assert fired("s") == [at(14), at(14, 50)]


# Late and missed


def test_a_tick_younger_than_two_leases_is_late_and_fires(work: Clockwork) -> None:
    declare(cron="0 13 * * *")
    work.turn()
    work.go(at(13, 0, 59))
    assert fired("s") == [at(13)]


def test_a_tick_older_than_two_leases_is_missed_and_in_the_ledger(work: Clockwork) -> None:
    declare(cron="0 13 * * *")
    work.turn()
    work.go(at(13, 1))
    assert fired("s") == []
    assert missed("s") == [(at(13), at(13), 1, "downtime")]
    assert row("s").next_fire == at(13, day=5)


def test_a_long_outage_gives_no_burst(work: Clockwork) -> None:
    declare(cron="* * * * *")
    work.turn()
    work.go(at(15, 0, 30))
    assert fired("s") == [at(15)]
    assert missed("s") == [(at(12, 1), at(14, 59), 179, "downtime")]


def test_a_gap_that_goes_on_is_one_gap(work: Clockwork) -> None:
    declare(cron="0 * * * *")
    work.turn()
    work.go(at(13, 30))
    work.go(at(14, 30))
    assert missed("s") == [(at(13), at(14), 2, "downtime")]
    work.go(at(15))
    work.go(at(16, 30))
    assert missed("s")[1:] == [(at(16), at(16), 1, "downtime")]


def test_more_missed_ticks_than_one_turn_counts_are_one_gap(work: Clockwork) -> None:
    declare(every=1)
    work.turn()
    work.go(25_000)
    assert [each[2:] for each in missed("s")] == [(24_999, "downtime")]
    assert len(fired("s")) == 1


def test_catch_up_last_fires_the_newest_missed_tick_once(work: Clockwork) -> None:
    declare(cron="*/10 * * * *", catch_up="last", catch_up_window=3_600)
    work.turn()
    work.go(at(14, 7))
    assert fired("s") == [at(14)]
    assert missed("s") == [(at(12, 10), at(13, 50), 11, "downtime")]


def test_catch_up_last_fires_nothing_older_than_its_window(work: Clockwork) -> None:
    declare(cron="0 13 * * *", catch_up="last", catch_up_window=3_600)
    work.turn()
    work.go(at(14, 0, 1))
    assert fired("s") == []
    assert missed("s") == [(at(13), at(13), 1, "downtime")]


def test_catch_up_all_fires_each_missed_tick_in_the_window_one_after_the_other(
    work: Clockwork,
) -> None:
    declare(cron="*/10 * * * *", catch_up="all", catch_up_window=1_800)
    work.turn()
    work.go(at(14, 7))
    assert fired("s") == [at(13, 40)]
    for _ in range(3):
        end(jobs("s")[-1])
        work.go(1)
    assert fired("s") == [at(13, 40), at(13, 50), at(14)]
    assert row("s").misses == 0
    assert missed("s") == [(at(12, 10), at(13, 30), 9, "downtime")]


def test_catch_up_all_at_once_where_runs_may_overlap_and_a_hundred_at_most(
    work: Clockwork,
) -> None:
    declare(cron="* * * * *", catch_up="all", catch_up_window=86_400, overlap="allow")
    work.turn()
    work.go(at(15, 0, 30))
    assert fired("s") == [at(13, 21) + timedelta(minutes=n) for n in range(100)]
    assert missed("s") == [(at(12, 1), at(13, 20), 80, "downtime")]


def test_schedules_that_have_to_wait_hold_up_none_behind_them(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: more than one batch of those due holds, here."""
    monkeypatch.setattr(ticker, "AT_ONCE", 2)
    for n in range(5):
        declare(f"waits{n}", cron="*/10 * * * *", catch_up="all", catch_up_window=86_400)
        declare(f"queues{n}", cron="*/10 * * * *", overlap="queue")
    declare(cron="0 15 * * *")
    work.turn()
    work.go(at(14, 5))
    work.walk(at(15), step=300)
    assert [len(fired(f"waits{n}")) for n in range(5)] == [1] * 5
    assert [len(fired(f"queues{n}")) for n in range(5)] == [1] * 5
    assert fired("s") == [at(15)]
    for n in range(5):
        end(jobs(f"queues{n}")[-1])
    work.go(1)
    assert [len(fired(f"queues{n}")) for n in range(5)] == [2] * 5


# Overlap


def test_a_tick_is_skipped_while_the_run_before_is_in_flight(work: Clockwork) -> None:
    declare(cron="* * * * *")
    work.turn()
    with Ear() as ear:
        work.walk(at(12, 3), step=20)
    assert fired("s") == [at(12, 1)]
    assert fired("s", "skipped") == [at(12, 2), at(12, 3)]
    assert set(TickClaim.objects.filter(outcome="skipped").values_list("reason", "job")) == {
        ("overlap", None)
    }
    assert (row("s").fires, row("s").misses) == (1, 2)
    assert row("s").next_fire == at(12, 4)
    skips = [each for each in ear.events if each.action == "scheduler.task.skipped"]
    assert [(each.outcome, each.reason) for each in skips] == [
        ("denied", "previous-run-in-flight")
    ] * 2
    end(jobs("s")[0])
    work.go(at(12, 4))
    assert fired("s")[1:] == [at(12, 4)]


def test_a_job_that_waits_for_its_retry_is_in_flight(work: Clockwork) -> None:
    declare(cron="* * * * *")
    work.turn()
    work.go(at(12, 1))
    Job.objects.update(held_reason="retry", attempts=1, claimable_at=at(18))
    work.go(at(12, 2))
    assert fired("s", "skipped") == [at(12, 2)]


def test_the_last_job_that_an_operator_has_requeued_is_in_flight(work: Clockwork) -> None:
    declare(cron="* * * * *")
    work.turn()
    work.go(at(12, 1))
    end(jobs("s")[0], State.FAILED)
    work.go(1)
    requeue(jobs("s")[0].pk)
    work.go(at(12, 2))
    assert fired("s", "skipped") == [at(12, 2)]


def test_overlap_queue_lets_one_tick_wait_for_the_run_before(work: Clockwork) -> None:
    declare(cron="* * * * *", overlap="queue")
    work.turn()
    work.walk(at(12, 4), step=20)
    assert fired("s") == [at(12, 1)]
    assert row("s").waiting == at(12, 2)
    assert fired("s", "skipped") == [at(12, 3), at(12, 4)]
    end(jobs("s")[0])
    work.go(1)
    assert fired("s") == [at(12, 1), at(12, 2)]
    assert (row("s").waiting, row("s").next_fire) == (None, at(12, 5))
    assert row("s").misses == 2


def test_overlap_allow_fires_whatever_is_in_flight(work: Clockwork) -> None:
    declare(cron="* * * * *", overlap="allow")
    work.turn()
    work.walk(at(12, 3), step=20)
    assert fired("s") == [at(12, 1), at(12, 2), at(12, 3)]
    assert row("s").running


# Pauses


def test_what_fell_into_a_pause_never_fires_and_is_in_the_ledger(work: Clockwork) -> None:
    declare(cron="*/10 * * * *", catch_up="all")
    work.turn()
    pause_schedule("s", by="kim", reason="stocktaking")
    work.walk(at(12, 35), step=60)
    resume_schedule("s")
    work.turn()
    assert fired("s") == []
    assert missed("s") == [(at(12, 10), at(12, 30), 3, "paused")]
    work.go(at(12, 40))
    assert fired("s") == [at(12, 40)]


def test_a_pause_that_no_leader_saw_is_told_from_the_downtime_after_it(work: Clockwork) -> None:
    declare(cron="*/10 * * * *")
    work.turn()
    pause_schedule("s")
    work.clock.move_to(at(12, 25))
    resume_schedule("s")
    work.go(at(13, 5))
    assert missed("s") == [
        (at(12, 10), at(12, 20), 2, "paused"),
        (at(12, 30), at(13, 0), 4, "downtime"),
    ]


def test_what_was_missed_before_a_pause_is_told_from_what_fell_into_it(work: Clockwork) -> None:
    declare("resumed", cron="*/10 * * * *", catch_up="all")
    declare("paused", cron="*/10 * * * *", catch_up="all")
    work.turn()
    work.clock.move_to(at(12, 35))
    pause_schedule("resumed")
    pause_schedule("paused")
    work.clock.move_to(at(12, 55))
    resume_schedule("resumed")
    work.go(at(12, 55, 1))
    expected = [
        (at(12, 10), at(12, 30), 3, "downtime"),
        (at(12, 40), at(12, 50), 2, "paused"),
    ]
    assert (missed("resumed"), fired("resumed")) == (expected, [])
    work.go(at(13, 1))
    assert missed("paused")[0] == expected[0]
    assert missed("paused")[1][3] == "paused"


def test_a_schedule_stays_paused_whatever_is_deployed(work: Clockwork) -> None:
    declare(cron="*/10 * * * *")
    work.turn()
    pause_schedule("s", by="kim")
    declare(cron="*/5 * * * *")
    work.start()
    work.go(at(12, 10))
    assert fired("s") == []
    assert row("s").paused_by == "kim"


def test_a_tick_that_waits_when_the_schedule_is_paused_does_not_fire(work: Clockwork) -> None:
    declare(cron="* * * * *", overlap="queue")
    work.turn()
    work.walk(at(12, 2), step=60)
    pause_schedule("s")
    end(jobs("s")[0])
    work.go(1)
    assert fired("s") == [at(12, 1)]
    resume_schedule("s")
    work.go(1)
    assert fired("s") == [at(12, 1)]


def test_a_schedule_pauses_itself_after_failures_in_a_row(work: Clockwork) -> None:
    declare(cron="* * * * *", pause_after_failures=2)
    work.turn()
    for minute in (1, 2, 3):
        work.go(at(12, minute))
        end(jobs("s")[-1], State.COMPLETED if minute == 1 else State.FAILED, error="no paper")
    work.go(1)
    kept = row("s")
    assert kept.paused_at == at(12, 3, 1)
    assert kept.paused_reason == "It paused itself after 2 failures in a row: no paper"
    work.go(at(12, 4))
    assert len(fired("s")) == 3
    resume_schedule("s")
    work.go(at(12, 5))
    end(jobs("s")[-1], State.FAILED)
    work.go(1)
    assert row("s").paused_at is None


# How runs end


def test_a_run_that_completes_is_told_and_clears_the_error(work: Clockwork) -> None:
    declare(cron="* * * * *")
    work.turn()
    work.go(at(12, 1))
    end(jobs("s")[0], State.FAILED, error="ValueError: no", error_code="")
    with Ear() as ear:
        work.go(at(12, 1, 10))
    kept = row("s")
    assert (kept.last_error, kept.failures_in_row) == ("ValueError: no", 1)
    assert (kept.running, kept.last_finish) == (False, at(12, 1))
    (event,) = ear.events
    assert (event.action, event.outcome) == ("scheduler.task.failure", "failure")
    assert event.reason == "ValueError"
    assert event.metadata == {"name": "s", "kind": "cron", "duration": 2.0, "via_job": False}

    work.go(at(12, 2))
    end(jobs("s")[1])
    with Ear() as ear:
        work.go(at(12, 2, 10))
    kept = row("s")
    assert (kept.last_error, kept.failures_in_row, kept.last_finish) == ("", 0, at(12, 2))
    assert ear.actions == ["scheduler.task.success"]


def test_a_run_that_the_watchdog_ended_is_told_as_such(work: Clockwork) -> None:
    declare(cron="* * * * *", max_run=5)
    work.turn()
    work.go(at(12, 1))
    end(jobs("s")[0], State.INTERRUPTED, interruption_reason="timed_out")
    with Ear() as ear:
        work.go(1)
    assert ear.actions == ["scheduler.task.watchdog", "scheduler.task.failure"]
    assert ear.events[1].reason == "timed_out"
    assert row("s").last_error == "timed_out"


def test_a_run_that_was_cancelled_is_neither_a_success_nor_a_failure(work: Clockwork) -> None:
    declare(cron="* * * * *")
    work.turn()
    work.go(at(12, 1))
    cancel(jobs("s")[0].pk)
    with Ear() as ear:
        work.go(1)
    assert ear.actions == []
    kept = row("s")
    assert (kept.running, kept.last_finish, kept.failures_in_row) == (False, None, 0)
    assert not TickClaim.objects.filter(open=True).exists()


def test_a_run_whose_job_was_deleted_by_hand_is_over(work: Clockwork) -> None:
    declare(cron="* * * * *")
    work.turn()
    work.go(at(12, 1))
    jobs("s")[0].delete()
    work.go(1)
    assert not row("s").running
    work.go(at(12, 2))
    assert fired("s") == [at(12, 1), at(12, 2)]


# Races and faults


def test_a_tick_that_somebody_has_claimed_is_lost_and_has_no_second_job(work: Clockwork) -> None:
    declare(cron="* * * * *")
    work.turn()
    TickClaim.objects.create(
        namespace="default", name="s", scheduled_at=at(12, 1), claimed_at=at(12), outcome="fired"
    )
    with Ear() as ear:
        work.go(at(12, 1))
    assert Job.objects.count() == 0
    kept = row("s")
    assert (kept.fires, kept.tick_claim_lost, kept.next_fire) == (0, 1, at(12, 2))
    assert not kept.running
    (event,) = ear.events
    assert (event.action, event.outcome) == ("scheduler.tick.lost", "denied")
    assert event.metadata == {
        "name": "s",
        "tick_key": "s:2026-05-04T12:01:00+00:00",
        "claimed_by": str(work.worker),
    }


def test_a_leader_whose_epoch_is_over_writes_nothing(work: Clockwork) -> None:
    declare(cron="* * * * *")
    work.turn()
    old = row("s")
    Clockwork(work.clock)
    with pytest.raises(LeadershipLost):
        work.go(at(12, 1))
    assert Job.objects.count() == TickClaim.objects.count() == 0
    assert row("s").next_fire == old.next_fire
    with pytest.raises(LeadershipLost):
        work.start()


def test_a_schedule_that_cannot_fire_harms_no_other_and_is_tried_until_its_time_is_over(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule("bad", cron="0 13 * * *", timezone="UTC", job="some.type", payload={"x": object()})
    declare("good", cron="0 13 * * *")
    work.turn()
    with Ear() as ear:
        work.go(at(13))
    assert fired("good") == [at(13)]
    assert fired("bad") == []
    assert row("bad").next_fire == at(13)
    (event,) = [each for each in ear.events if each.action == "scheduler.tick.error"]
    assert event.outcome == "failure"
    assert event.reason == "invalid-job"
    assert event.metadata["name"] == "bad"
    assert row("bad").last_error.startswith(
        "The tick of 2026-05-04T13:00:00+00:00 cannot be put in"
    )
    assert "jobs[" not in row("bad").last_error

    work.go(at(13, 0, 30))
    assert fired("bad") == []
    _try_again(work)
    work.go(at(13, 2))
    assert fired("bad", "skipped") == [at(13)]
    assert TickClaim.objects.get(name="bad").reason == "deadline"
    assert row("bad").next_fire == at(13, day=5)
    assert row("bad").misses == 0


def test_a_schedule_that_could_not_fire_fires_once_it_can(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_durable_jobs.ticks import firing

    def refuse(*args: object, **kwargs: object) -> None:
        raise InvalidJob("payload: not today", field="payload", path="payload")

    declare(cron="0 13 * * *")
    work.turn()
    with monkeypatch.context() as patch:
        patch.setattr(firing, "enqueue_many", refuse)
        work.go(at(13))
    assert TickClaim.objects.count() == 0
    _try_again(work)
    work.go(at(13, 0, 5))
    assert fired("s") == [at(13)]


def _try_again(work: Clockwork) -> None:
    """Let the pause after a failure be over."""
    assert work.ticker is not None
    for failing in work.ticker._failing.values():
        failing.again_at = 0.0


# Gone from the code


def test_a_schedule_gone_from_the_code_does_not_fire_and_is_kept(work: Clockwork) -> None:
    declare("gone", cron="* * * * *")
    declare("stays", cron="* * * * *")
    work.turn()
    old = schedules.get("gone")
    assert old is not None
    schedules.remove(old)
    work.start()
    work.go(at(12, 1))
    assert (fired("gone"), fired("stays")) == ([], [at(12, 1)])
    assert row("gone").retired_at is None
    assert work.ticker is not None
    work.ticker.retire(work.epoch)
    assert row("gone").retired_at == at(12, 1)
    assert row("stays").retired_at is None


def test_a_schedule_that_comes_back_goes_on_from_now(work: Clockwork) -> None:
    declare("s", cron="* * * * *")
    work.turn()
    declaration = schedules.get("s")
    assert declaration is not None
    for retired in (False, True):
        schedules.remove(declaration)
        work.start()
        if retired:
            assert work.ticker is not None
            work.ticker.retire(work.epoch)
        work.go(90)
        schedules.add(declaration)
        work.start()
        assert row("s").retired_at is None
        assert missed("s") == []
    assert row("s").next_fire == at(12, 4)


# At size


def test_many_schedules_of_one_minute_fire_in_few_statements(
    work: Clockwork, django_assert_max_num_queries: Any
) -> None:
    for number in range(1_000):
        declare(f"s{number}", cron="0 13 * * *")
    work.turn()
    work.clock.move_to(at(13))
    assert work.ticker is not None
    with django_assert_max_num_queries(120):
        work.turn()
    assert TickClaim.objects.filter(outcome="fired", scheduled_at=at(13)).count() == 1_000
    assert Job.objects.count() == 1_000
    assert Schedule.objects.filter(fires=1, next_fire=at(13, day=5)).count() == 1_000
