"""S2 _emit and opts.audit: what is told of, in which form, and the events of start and stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from django_durable_jobs import enqueue, register_handler, schedule
from django_durable_jobs.audit import DENIED, FAILURE, SUCCESS, audit
from django_durable_jobs.worker import Scheduler
from tests.hearing import Ear, connected

from .conftest import Configure, settled, until

pytestmark = pytest.mark.django_db(transaction=True)

Make = Callable[..., Scheduler]


@pytest.fixture
def ear() -> Iterator[Ear]:
    with Ear() as ear:
        yield ear


def test_emit_tells_action_outcome_reason_and_metadata(ear: Ear) -> None:
    for outcome in (SUCCESS, FAILURE, DENIED):
        audit("task.ended", outcome=outcome, reason="rain", metadata={"name": "nightly"})
    assert [event.outcome for event in ear.events] == ["success", "failure", "denied"]
    assert {(event.action, event.reason) for event in ear.events} == {("task.ended", "rain")}
    assert all(event.metadata == {"name": "nightly"} for event in ear.events)


def test_emit_without_a_reason_or_metadata_has_empty_ones(ear: Ear) -> None:
    """changed: "" where the seed has null, and the time beside it."""
    audit("task.ended")
    (event,) = ear.events
    assert (event.outcome, event.reason, event.metadata) == ("success", "", {})
    assert (datetime.now(UTC) - event.at).total_seconds() < 60


def test_emit_is_safe_whatever_a_receiver_does(ear: Ear) -> None:
    def receiver(**kwargs: Any) -> None:
        raise ValueError("broken")

    with connected(receiver):
        audit("task.ended")
    assert ear.actions == ["task.ended"]


def test_emit_is_silent_with_audit_false(ear: Ear, configure: Configure, scheduler: Make) -> None:
    configure(AUDIT=False)
    enqueue("seed.job")
    one = scheduler()
    one.tick()
    one.shutdown()
    assert ear.events == []


def test_emit_start_and_stop_tell_how_many_schedules(ear: Ear, scheduler: Make) -> None:
    register_handler("seed.job", lambda: None)
    for name in ("hourly", "daily"):
        schedule(name, every=3600, job="seed.job", payload={})
    one = scheduler()
    one.start()
    settled(enqueue("seed.job"))
    one.shutdown()
    told = {event.action: event for event in ear.events if event.action.startswith("scheduler.")}
    assert list(told) == ["scheduler.start", "scheduler.stop"]
    for event in told.values():
        assert event.outcome == "success"
        assert event.metadata == {"count": 2, "worker": str(one.id)}


def test_emit_start_again_tells_of_nothing(ear: Ear, scheduler: Make) -> None:
    one = scheduler()
    one.start()
    one.start()
    until(lambda: "scheduler.start" in ear.actions)
    one.shutdown()
    one.shutdown()
    for action in ("scheduler.start", "scheduler.stop"):
        assert ear.actions.count(action) == 1
