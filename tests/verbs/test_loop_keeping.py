"""Loop records stay what they are: through pruning, fixtures, time zones, owners that are none."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext, override_settings

from django_durable_jobs import cancel, prune_jobs, receivers, registry
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.ids import uuid7
from django_durable_jobs.loops import sync_loops
from django_durable_jobs.models import Job, QueueEntry
from django_durable_jobs.states import SETTLED, State
from tests.app.models import Note, Page, Reminder, Ticket
from tests.factories import assert_queue_is_sound
from tests.looping import run

pytestmark = pytest.mark.django_db(transaction=True)

# Not whole milliseconds: no clock is.
NOON = datetime(2026, 5, 4, 12, 0, 0, 123_456, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    manual = ManualClock(NOON)
    with use_clock(manual):
        yield manual


@pytest.fixture
def many_users(settings: Any) -> Iterator[None]:
    settings.DURABLE_JOBS = {"MULTI_USER": True}
    yield
    durable_settings.reset()


def make(**values: Any) -> Reminder:
    return Reminder.objects.create(**{"text": "tea", "every": HOUR} | values)


def queued() -> list[Job]:
    return [entry.job for entry in QueueEntry.objects.order_by("run_at").select_related("job")]


def come_to(job: Job, state: State, at: datetime) -> None:
    """Let a job have come to this without its record's having heard of it."""
    QueueEntry.objects.filter(pk=job.pk).delete()
    finished = at if state in SETTLED else None
    Job.objects.filter(pk=job.pk).update(state=state, claim_id=uuid7(), finished_at=finished)


# Pruning


def test_a_cancelled_occurrence_stays_cancelled_when_old_jobs_are_pruned(
    clock: ManualClock,
) -> None:
    record = make()
    (job,) = queued()
    cancel(job.pk, "holiday")
    clock.value += timedelta(minutes=10)
    assert prune_jobs(1) == 0
    sync_loops()
    assert queued() == []
    clock.value = NOON + HOUR + SECOND
    sync_loops()
    (following,) = queued()
    record.refresh_from_db()
    assert following.run_at == record.next_run_at == job.run_at + HOUR
    # Now that the record has gone on it is like any other.
    assert prune_jobs(1) == 1
    assert not Job.objects.filter(pk=job.pk).exists()
    assert_queue_is_sound()


def test_the_cancelled_run_of_a_yearly_record_stays_so_for_longer_than_jobs_are_kept(
    clock: ManualClock,
) -> None:
    make(every=None, cron="0 0 1 1 *", timezone="UTC")
    (job,) = queued()
    cancel(job.pk, "not this year")
    for _ in range(3):
        clock.value += 40 * DAY
        assert prune_jobs() == 0
        sync_loops()
        assert queued() == []


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.INTERRUPTED])
def test_a_single_run_that_is_over_does_not_run_again_when_its_job_is_pruned(
    state: State, clock: ManualClock
) -> None:
    make(every=None, next_run_at=NOON + HOUR)
    (job,) = queued()
    clock.value += 2 * HOUR
    come_to(job, state, clock.value)  # and its record did not hear of it
    clock.value += 40 * DAY
    assert prune_jobs() == 0
    sync_loops()
    assert queued() == []
    assert Reminder.objects.get().next_run_at is None
    assert prune_jobs() == 1


def test_a_single_run_cancelled_long_ago_is_not_late_when_its_job_is_pruned(
    clock: ManualClock,
) -> None:
    make(every=None, next_run_at=NOON + HOUR)
    cancel(queued()[0].pk, "not needed")
    clock.value += 40 * DAY
    prune_jobs()
    sync_loops()
    assert queued() == []


def test_jobs_of_records_that_are_no_more_or_were_edited_are_pruned(clock: ManualClock) -> None:
    gone, edited, disabled = make(), make(), make()
    gone.delete()
    edited.every = 2 * HOUR
    edited.save()
    disabled.enabled = False
    disabled.save()
    clock.value += SECOND * 2
    assert prune_jobs(1) == 3
    assert [job.target_id for job in queued()] == [str(edited.pk)]


def test_what_is_kept_is_asked_once_per_model_of_a_batch(clock: ManualClock) -> None:
    for number in range(3):
        make()
        Ticket.objects.create(every=HOUR)
        Page.objects.create(path=f"/{number}", every=HOUR)
    for job in queued():
        cancel(job.pk)
    clock.value += SECOND * 2
    with CaptureQueriesContext(connection) as captured:
        assert prune_jobs(1) == 0
    for model in (Reminder, Ticket, Page):
        reads = [each for each in captured if model._meta.db_table in each["sql"]]
        assert len(reads) == 1


# Fixtures


def dumped(folder: Path, *models: str) -> str:
    path = str(folder / "records.json")
    call_command("dumpdata", *models, output=path, verbosity=0)
    return path


def load(path: str) -> None:
    call_command("loaddata", path, verbosity=0)


def test_times_that_are_stored_are_whole_milliseconds(clock: ManualClock) -> None:
    made = [
        make(),
        make(every=timedelta(seconds=7, microseconds=1)),
        make(every=None, next_run_at=NOON + HOUR),
        *Reminder.objects.bulk_create([Reminder(every=DAY)]),
    ]
    Reminder.objects.filter(pk=made[0].pk).update(next_run_at=NOON + 2 * HOUR)
    made[1].run_now()
    clock.value += SECOND
    for job in queued():
        if job.run_at <= clock.value:
            run(job)
    for record in Reminder.objects.all():
        times = [record.next_run_at, record.last_occurrence_at, record.updated_at]
        assert [each.microsecond % 1_000 for each in times if each is not None].count(0) >= 2
        assert {each.microsecond % 1_000 for each in times if each is not None} == {0}


def test_records_that_come_back_from_a_fixture_unchanged_change_nothing(tmp_path: Path) -> None:
    for number in range(5):
        make(every=timedelta(minutes=7 + number))
        make(every=None, next_run_at=NOON + HOUR * (number + 1))
        make(every=6 * HOUR, baseline=time(2, 30), timezone="Europe/Vienna")
        Ticket.objects.create(every=HOUR)
    before = {job.pk: job.idempotency_key for job in queued()}
    load(dumped(tmp_path, "testapp.reminder", "testapp.ticket"))
    assert sync_loops() == 0
    assert {job.pk: job.idempotency_key for job in queued()} == before


def test_a_single_run_that_is_over_does_not_run_again_when_a_fixture_of_before_is_loaded(
    tmp_path: Path, clock: ManualClock
) -> None:
    make(every=None, next_run_at=NOON + HOUR)
    path = dumped(tmp_path, "testapp.reminder")
    clock.value += 2 * HOUR
    (job,) = queued()
    run(job)
    come_to(job, State.COMPLETED, clock.value)
    assert Note.objects.count() == 1
    load(path)
    sync_loops()
    assert queued() == []
    record = Reminder.objects.get()
    assert (record.next_run_at, record.schedule_epoch) == (None, 0)


def test_less_than_a_millisecond_is_no_edit() -> None:
    record = make(every=None, next_run_at=NOON + HOUR)
    before = queued()
    Reminder.objects.update(next_run_at=NOON + HOUR + timedelta(microseconds=400))
    record.next_run_at = NOON + HOUR
    record.save()
    assert (queued(), Reminder.objects.get().schedule_epoch) == (before, 0)
    Reminder.objects.update(next_run_at=NOON + HOUR + timedelta(milliseconds=1))
    assert Reminder.objects.get().schedule_epoch == 1


# Time zones


def test_an_interval_alone_goes_on_whatever_becomes_of_the_time_zone(clock: ManualClock) -> None:
    record = make(every=30 * DAY)
    (job,) = queued()
    clock.value += 30 * DAY - timedelta(minutes=3)
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert sync_loops() == 0
        record.timezone = "Europe/Vienna"
        record.save()
    assert [each.pk for each in queued()] == [job.pk]
    assert queued()[0].run_at == job.run_at
    assert Reminder.objects.get().schedule_epoch == 0


@pytest.mark.parametrize(
    "rule", [{"every": None, "cron": "30 2 * * *"}, {"every": HOUR, "baseline": time(2, 30)}]
)
def test_what_has_a_time_of_day_begins_anew_in_another_time_zone(rule: dict[str, Any]) -> None:
    record = make(**rule, timezone="UTC")
    record.timezone = "Asia/Kathmandu"
    record.save()
    assert record.schedule_epoch == 1
    (job,) = queued()
    assert job.payload["schedule_epoch"] == 1


def test_a_run_that_has_begun_does_not_come_again_once_its_records_zone_is_mended(
    clock: ManualClock,
) -> None:
    record = make()
    (job,) = queued()
    clock.value = NOON + HOUR
    come_to(job, State.COMPLETED, clock.value)
    Reminder.objects.update(timezone="Mars/Base")
    record.refresh_from_db()
    assert "The time zone is" in record.last_error
    Reminder.objects.update(timezone="")
    record.refresh_from_db()
    assert record.last_error == ""
    assert record.last_occurrence_at == job.run_at
    assert [each.run_at for each in queued()] == [job.run_at + HOUR]


@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("state", [State.RUNNING, State.COMPLETED])
def test_a_run_that_has_begun_does_not_come_again_as_a_single_one(
    spoiled: bool, state: State, clock: ManualClock
) -> None:
    record = make(every=None, cron="30 * * * *", timezone="UTC")
    (job,) = queued()
    clock.value = job.run_at
    come_to(job, state, clock.value)
    if spoiled:
        record.cron = "61 * * * *"
        record.save()
    record.cron = ""
    record.save()
    assert queued() == []
    Job.objects.filter(pk=job.pk).update(state=State.COMPLETED, finished_at=clock.value)
    sync_loops()
    assert queued() == []
    assert Reminder.objects.get().next_run_at is None


# Owners


@pytest.mark.parametrize("owner", ["x\n", " ", "a\x00b", "\ud800"])
def test_an_owner_that_can_be_none_is_refused_at_its_field(owner: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Reminder(text="tea", every=HOUR, owner_id=owner).full_clean()
    assert set(caught.value.message_dict) == {"owner_id"}


def test_an_owner_and_a_recurrence_that_are_none_are_both_told() -> None:
    with pytest.raises(ValidationError) as caught:
        Reminder(text="tea", cron="61 * * * *", owner_id="x\n").full_clean()
    assert set(caught.value.message_dict) == {"cron", "owner_id"}


@pytest.mark.usefixtures("many_users")
@pytest.mark.parametrize("owner", ["x\n", " "])
def test_no_job_of_the_previous_owner_stays_when_the_new_one_can_be_none(owner: str) -> None:
    record = make(owner_id="kim")
    with connection.cursor() as cursor:  # past everything that would hear of it
        table = connection.ops.quote_name(Reminder._meta.db_table)
        cursor.execute(f"UPDATE {table} SET owner_id = %s", [owner])
    assert sync_loops() == 1
    assert sync_loops() == 0
    assert queued() == []
    job = Job.objects.get()
    assert (job.owner_id, job.state) == ("kim", State.CANCELLED)
    assert job.cancelled_reason == "record_requires_owner"
    record.refresh_from_db()
    assert record.last_error.startswith("InvalidJob: owner_id")
    record.owner_id = "lee"
    record.save()
    (job,) = queued()
    assert (job.owner_id, job.run_at) == ("lee", record.next_run_at)
    assert record.last_error == ""


@pytest.mark.usefixtures("many_users")
def test_an_occurrence_that_has_run_does_not_come_again_once_its_owner_is_mended(
    clock: ManualClock,
) -> None:
    record = make(owner_id="kim")
    (job,) = queued()
    clock.value = NOON + HOUR
    come_to(job, State.INTERRUPTED, clock.value)
    record.owner_id = "x\n"
    record.save()
    assert record.last_error
    record.owner_id = "lee"
    record.save()
    assert record.last_error == ""
    assert [each.run_at for each in queued()] == [job.run_at + HOUR]


# Copies past save


def test_a_copy_that_is_edited_as_its_model_was_has_a_job_of_its_own() -> None:
    record = make(every=None)
    names = [f.attname for f in Reminder._meta.local_fields if not f.primary_key]
    twin = Reminder(**{name: getattr(record, name) for name in names})
    twin.save_base(raw=True)  # with the identity of the other
    hourly = {"cron": "0 * * * *", "timezone": "UTC"}
    Reminder.objects.filter(pk=twin.pk).update(**hourly)
    Reminder.objects.update(**hourly)
    jobs = queued()
    assert {job.target_id for job in jobs} == {str(record.pk), str(twin.pk)}
    assert [job.payload["record_id"] for job in jobs] == [job.target_id for job in jobs]
    assert sync_loops() == 0


# How occurrences run


def test_a_model_says_for_how_long_and_in_which_queue_its_occurrences_run() -> None:
    page = Page.objects.create(path="/a", every=HOUR)
    (job,) = queued()
    assert (job.queue, job.priority, QueueEntry.objects.get().queue) == ("pages", 5, "pages")
    handler = registry.get(job.type)
    assert handler is not None
    assert handler.timeout == 90
    page.save()  # a new revision is all there is to tell
    refreshed = queued()[0]
    assert (refreshed.pk, refreshed.queue, refreshed.priority) == (job.pk, "pages", 5)
    Page.objects.update(owner_id="kim")
    again = queued()[0].fingerprint
    assert sync_loops() == 0
    assert queued()[0].fingerprint == again


def test_options_that_would_run_an_occurrence_twice_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = registry.get("loop-occurrence:testapp.page")
    assert handler is not None
    registry.handlers.remove(handler)
    monkeypatch.setattr(Page, "occurrence_options", {"queue": "pages", "max_attempts": 3})
    try:
        with pytest.raises(TypeError, match=r"Page\.occurrence_options has max_attempts; accepted"):
            receivers.connect()
    finally:
        monkeypatch.undo()
        receivers.connect()
    assert registry.get("loop-occurrence:testapp.page") is not None
