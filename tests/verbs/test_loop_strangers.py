"""Loop records beside what is in their way: other databases, hooks whose queries fail."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, connections

from django_durable_jobs import cancel, requeue
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.errors import InvalidJob, WrongState
from django_durable_jobs.loops import sync_loops
from django_durable_jobs.loops.syncing import sync_steps
from django_durable_jobs.models import Job, QueueEntry
from tests.app.models import Reminder

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    manual = ManualClock(NOON)
    with use_clock(manual):
        yield manual


def times() -> dict[str, datetime]:
    """Return for when each reminder has a job, by its text."""
    texts = {str(record.pk): record.text for record in Reminder.objects.all()}
    entries = QueueEntry.objects.select_related("job")
    return {texts[entry.job.target_id]: entry.run_at for entry in entries}


def test_who_leads_in_another_database_puts_in_no_second_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connections.settings, "other", connections.settings["default"])
    Reminder.objects.create(text="tea", every=HOUR)
    QueueEntry.objects.all().delete()
    Job.objects.all().delete()
    assert list(sync_steps(using="other")) == []
    with pytest.raises(InvalidJob, match="using: 'other' is not where the jobs of loop records"):
        sync_loops(using="other")
    assert times() == {}
    assert sync_loops(using="default") == 1
    assert times() == {"tea": NOON + HOUR}


def test_a_hook_whose_query_fails_holds_up_no_other_record(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("first", "bad", "last"):
        Reminder.objects.create(text=text, every=HOUR)

    def ask(self: Reminder) -> str:
        if self.text == "bad":
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM there_is_no_such_table")
        return "reminders"

    monkeypatch.setattr(Reminder, "get_project_id", ask)
    Reminder._base_manager.update(every=DAY)
    sync_loops(Reminder)
    assert times() == {"first": NOON + DAY, "bad": NOON + HOUR, "last": NOON + DAY}
    bad = Reminder.objects.get(text="bad")
    assert "there_is_no_such_table" in bad.last_error
    monkeypatch.undo()
    sync_loops(Reminder)
    assert times() == dict.fromkeys(("first", "bad", "last"), NOON + DAY)
    bad.refresh_from_db()
    assert bad.last_error == ""


def test_an_occurrence_whose_record_has_a_broken_hook_is_not_requeued() -> None:
    record = Reminder.objects.create(text="tea", every=HOUR)
    job = QueueEntry.objects.get().job
    cancel(job.pk)
    Reminder._base_manager.filter(pk=record.pk).update(refuses="project")
    with pytest.raises(WrongState, match="a record that is to be mended first: no project"):
        requeue(job.pk)
