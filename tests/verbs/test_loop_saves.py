"""Loop records written in every way that Django has: the jobs follow, and nothing is undone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, connections, transaction
from django.db.models import F, Value
from django.db.models.functions import Concat

from django_durable_jobs import cancel, claims, requeue, signals
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.errors import WrongState
from django_durable_jobs.loops import sync_loops, syncing
from django_durable_jobs.models import Job, QueueEntry
from django_durable_jobs.states import State
from tests.app.models import LoudReminder, Page, Poster, QuietReminder, Reminder, Sheet, Ticket
from tests.factories import assert_queue_is_sound

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
HOURLY: dict[str, Any] = {"cron": "0 * * * *", "timezone": "UTC"}


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
    return Reminder.objects.create(**{"text": "tea", **HOURLY} | values)


def stored(record: Reminder) -> Reminder:
    return Reminder._base_manager.get(pk=record.pk)


def queued() -> list[tuple[str, int, int]]:
    """Return (target, hour, minute) of each queued job, and see that the rest is in step."""
    assert sync_loops() == 0
    assert_queue_is_sound()
    return waiting()


def waiting() -> list[tuple[str, int, int]]:
    jobs = Job.objects.filter(state=State.QUEUED).order_by("run_at", "target_id")
    return [(job.target_id, job.run_at.hour, job.run_at.minute) for job in jobs]


# Records in memory


def test_a_stale_record_takes_nothing_back(clock: ManualClock) -> None:
    record = make()
    stale = stored(record)
    record.cron = "30 * * * *"
    record.save()
    stale.text = "coffee"
    stale.save()  # the columns of the schedule are the project's own: the last save wins
    assert (stale.cron, stale.schedule_epoch) == ("0 * * * *", 2)
    assert queued() == [(str(record.pk), 13, 0)]


def test_a_stale_record_keeps_what_the_machinery_has_written() -> None:
    record = make()
    stale = stored(record)
    record.run_now()
    record.refresh_from_db()
    stale.text = "coffee"
    stale.save()
    assert (stale.next_run_at, stale.schedule_epoch) == (record.next_run_at, 1)
    assert len(queued()) == 1


@pytest.mark.parametrize("fields", [["text"], ["text", "next_run_at"], {"text", "synced"}])
def test_update_fields_write_what_is_named_and_sync(fields: Any) -> None:
    record = make()
    record.text, record.cron = "coffee", "30 * * * *"
    record.save(update_fields=fields)
    assert (stored(record).text, stored(record).cron) == ("coffee", "0 * * * *")
    assert queued() == [(str(record.pk), 13, 0)]
    record.save(update_fields=["cron"])
    assert queued() == [(str(record.pk), 12, 30)]


def test_update_fields_of_nothing_write_nothing(django_assert_num_queries: Any) -> None:
    record = make()
    record.text = "coffee"
    with django_assert_num_queries(0):
        record.save(update_fields=[])


def test_deferred_fields_stay_deferred_and_are_not_written() -> None:
    record = make()
    part = Reminder.objects.only("text").get(pk=record.pk)
    part.text = "coffee"
    part.save()
    assert {"cron", "next_run_at", "synced"} <= part.get_deferred_fields()
    assert queued() == [(str(record.pk), 13, 0)]


def test_a_deferred_time_that_is_set_is_written() -> None:
    record = make()
    for value in (NOON + timedelta(minutes=10), None):
        part = Reminder.objects.defer("next_run_at").get(pk=record.pk)
        part.next_run_at = value
        part.save()
        expected = (12, 10) if value else (13, 0)  # none: the next by its cron
        assert queued() == [(str(record.pk), *expected)]


def test_a_record_that_was_read_again_is_as_stored() -> None:
    record = make()
    other = stored(record)
    other.cron = "30 * * * *"
    other.save()
    record.refresh_from_db()
    assert not record.tracker.changed()
    record.text = "coffee"
    record.save()
    assert (record.schedule_epoch, queued()) == (1, [(str(record.pk), 12, 30)])


def test_get_or_create_and_update_or_create() -> None:
    record, created = Reminder.objects.get_or_create(text="tea", defaults=HOURLY)
    again, made = Reminder.objects.get_or_create(text="tea", defaults=HOURLY)
    assert (created, made, again) == (True, False, record)
    assert queued() == [(str(record.pk), 13, 0)]
    Reminder.objects.update_or_create(text="tea", defaults={"cron": "30 * * * *"})
    assert queued() == [(str(record.pk), 12, 30)]


def test_a_record_under_lock_is_saved_as_any() -> None:
    record = make()
    with transaction.atomic():
        held = Reminder.objects.select_for_update().get(pk=record.pk)
        held.cron = "30 * * * *"
        held.save()
    assert queued() == [(str(record.pk), 12, 30)]


def test_a_switch_that_is_turned_twice_in_one_transaction() -> None:
    record = make()
    with transaction.atomic():
        record.enabled = False
        record.save()
        record.enabled = True
        record.save()
    assert queued() == [(str(record.pk), 13, 0)]
    assert record.schedule_epoch == 1


def test_many_saves_in_one_transaction_leave_one_job() -> None:
    record = make()
    with transaction.atomic():
        for number in range(100):
            record.cron = f"{number % 50} * * * *"
            record.save()
    assert queued() == [(str(record.pk), 12, 49)]


def test_a_save_costs_a_few_statements(django_assert_max_num_queries: Any) -> None:
    record = make()
    record.text = "coffee"
    with django_assert_max_num_queries(16):
        record.save()


# Copies


@pytest.mark.parametrize("bulk", [False, True])
def test_a_copy_is_a_record_of_its_own(bulk: bool) -> None:
    record = make()
    copied = stored(record)
    copied.pk = None
    if bulk:
        Reminder.objects.bulk_create([copied])
        (copied,) = Reminder.objects.exclude(pk=record.pk)
    else:
        copied.save()
    assert copied.schedule_identity != record.schedule_identity
    assert queued() == sorted([(str(record.pk), 13, 0), (str(copied.pk), 13, 0)])
    copied.delete()
    assert queued() == [(str(record.pk), 13, 0)]


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("synced", [False, True])
def test_copies_made_past_the_model_are_told_apart(synced: bool, edited: bool) -> None:
    record = make()
    names = [f.column for f in Reminder._meta.local_fields if not f.primary_key]
    columns, table = ", ".join(names), Reminder._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table}")
    if not synced:
        Job.objects.all().delete()
        QueueEntry.objects.all().delete()
        Reminder._base_manager.update(synced="")
    if edited:
        others = Reminder._base_manager.exclude(pk=record.pk)
        others.update(next_run_at=NOON + timedelta(minutes=90))
    assert sync_loops() > 0
    if synced or not edited:  # else they have met at no time yet
        assert len({each.schedule_identity for each in Reminder.objects.all()}) == 2
    assert len({target for target, _, _ in queued()}) == 2


def test_copies_that_come_to_the_same_occurrence_later_are_told_apart(many_users: None) -> None:
    record = make()  # has no owner, and so no job
    twin = stored(record)
    twin.pk, twin._state.adding = None, True
    twin.save_base(raw=True)
    Reminder._base_manager.update(owner_id="kim")
    record.refresh_from_db()
    record.save()
    assert sync_loops() == 1
    assert len(queued()) == 2


def test_an_epoch_that_was_set_back_past_the_model_harms_no_other() -> None:
    record = make()
    for cron in ("30 * * * *", "0 * * * *"):
        record.cron = cron
        record.save()
    Reminder._base_manager.update(schedule_epoch=1, cron="30 * * * *")
    other = make()
    assert sync_loops() == 1
    assert sorted(target for target, _, _ in queued()) == [str(record.pk), str(other.pk)]


def test_a_deleted_record_that_is_saved_is_put_in_again() -> None:
    record = make()
    other = stored(record)
    record.delete()
    other.save()
    assert queued() == [(str(other.pk), 13, 0)]


def test_a_save_that_was_rolled_back_can_be_made_again() -> None:
    record = Reminder(text="tea", **HOURLY)
    with transaction.atomic():
        record.save()
        transaction.set_rollback(True)
    record.save()
    assert queued() == [(str(record.pk), 13, 0)]


# In bulk


def test_bulk_create_needs_no_more_than_the_model_does() -> None:
    made = Reminder.objects.bulk_create(Reminder(text=str(n), **HOURLY) for n in range(3))
    assert len(queued()) == 3
    if made[0].pk is not None:
        assert made[0].next_run_at == NOON + timedelta(hours=1)
        Reminder.objects.filter(pk=made[0].pk).update(cron="30 * * * *")
        made[0].text = "x"
        made[0].save(update_fields=["text"])
        assert stored(made[0]).schedule_epoch == 1


def test_bulk_create_that_passes_over_what_is_there_or_changes_it() -> None:
    page = Page.objects.create(path="/a", **HOURLY)
    Page.objects.bulk_create(
        [Page(path="/a", cron="30 * * * *"), Page(path="/b", **HOURLY)], ignore_conflicts=True
    )
    assert queued() == [("/a", 13, 0), ("/b", 13, 0)]
    if connection.features.supports_update_conflicts_with_target:
        unique: Any = {"unique_fields": ["path"]}
    else:
        unique = {}
    Page.objects.bulk_create(
        [Page(path=path, cron="30 * * * *", timezone="UTC") for path in ("/a", "/c")],
        update_conflicts=True,
        update_fields=["cron"],
        **unique,
    )
    assert queued() == [("/a", 12, 30), ("/c", 12, 30), ("/b", 13, 0)]
    before = page.updated_at
    page.refresh_from_db()
    assert (page.schedule_epoch, page.updated_at > before) == (1, True)


def test_an_update_by_an_expression() -> None:
    records = [make(text=minute) for minute in ("10", "20")]
    Reminder.objects.update(cron=Concat(F("text"), Value(" * * * *")))
    assert queued() == [(str(records[0].pk), 12, 10), (str(records[1].pk), 12, 20)]


def test_an_update_whose_filter_finds_nothing_afterwards() -> None:
    make()
    Reminder.objects.filter(enabled=True).update(enabled=False)
    assert queued() == []


def test_a_bulk_edit_takes_a_constant_number_of_statements(many_users: None) -> None:
    def count(number: int, **values: Any) -> int:
        from django.test.utils import CaptureQueriesContext

        some = Reminder.objects.filter(pk__in=[record.pk for record in records[:number]])
        with CaptureQueriesContext(connection) as found:
            some.update(**values)
        return len(found)

    records = [make(owner_id="kim") for _ in range(60)]
    for values in ({"text": "x"}, {"owner_id": "lee"}, {"cron": "30 * * * *"}, {"enabled": False}):
        few, many = count(3, **values), count(60, **values)
        assert many <= few + 10, values  # SQLite binds 999 values a statement
    assert queued() == []


def test_an_owner_changed_in_bulk_is_that_of_the_jobs(many_users: None) -> None:
    records = [make(owner_id="kim") for _ in range(3)]
    running, held = records[0], records[1]
    job = Job.objects.get(target_id=str(running.pk))
    QueueEntry.objects.filter(pk=job.pk).delete()
    Job.objects.filter(pk=job.pk).update(state="running", claim_id=uuid.uuid4())
    Reminder.objects.update(owner_id="lee")
    owners = dict(Job.objects.values_list("target_id", "owner_id"))
    assert owners == {
        str(running.pk): "kim",
        str(held.pk): "lee",
        str(records[2].pk): "lee",
    }
    assert set(QueueEntry.objects.values_list("owner_id", flat=True)) == {"lee"}
    assert sync_loops() == 0


def test_a_job_that_was_put_off_is_asked_again_after_an_edit() -> None:
    record = make()
    later = NOON + timedelta(hours=3)
    Job.objects.update(claimable_at=later, held_since=NOON, held_reason="not_eligible")
    QueueEntry.objects.update(claimable_at=later)
    record.text = "coffee"
    record.save()
    job = Job.objects.get()
    assert (job.claimable_at, job.held_reason, job.held_since) == (job.run_at, "", None)
    assert_queue_is_sound()


def test_records_deleted_in_bulk_have_their_jobs_cancelled_at_once() -> None:
    from django.test.utils import CaptureQueriesContext

    counts = []
    for number in (3, 60):
        for _ in range(number):
            make()
        with CaptureQueriesContext(connection) as found:
            deleted, _ = Reminder.objects.all().delete()
        assert deleted == number
        assert queued() == []
        counts.append(len(found))
    assert counts[0] == counts[1]


def test_a_delete_that_is_rolled_back_leaves_the_job() -> None:
    record = make()
    for delete in (Reminder.objects.all().delete, record.delete):
        with transaction.atomic():
            delete()
            assert waiting() == []
            transaction.set_rollback(True)
        record = Reminder.objects.get()
        assert queued() == [(str(record.pk), 13, 0)]


# Fixtures


def test_a_fixture_is_found_by_the_reconcile(tmp_path: Path) -> None:
    record = make()
    call_command("dumpdata", "testapp.reminder", output=str(tmp_path / "all.json"))
    record.delete()
    fixture = tmp_path / "by_hand.json"
    fixture.write_text(json.dumps([{"model": "testapp.page", "pk": "/a", "fields": HOURLY}]))
    call_command("loaddata", str(tmp_path / "all.json"), str(fixture), verbosity=0)
    assert waiting() == []
    sync_loops()
    sync_loops()
    assert ("/a", 13, 0) in queued()


def test_a_fixture_over_a_record_that_is_there(tmp_path: Path) -> None:
    record = make()
    file = str(tmp_path / "all.json")
    call_command("dumpdata", "testapp.reminder", output=file)
    record.cron = "30 * * * *"
    record.save()
    call_command("loaddata", file, verbosity=0)
    sync_loops()
    assert stored(record).cron == "0 * * * *"
    assert len(queued()) <= 1


# Models


def test_a_child_says_whose_its_occurrences_are(many_users: None) -> None:
    loud = LoudReminder.objects.create(text="tea", owner_id="kim", **HOURLY)
    assert list(Job.objects.values_list("owner_id", flat=True)) == ["KIM"]
    plain = Reminder.objects.get(pk=loud.pk)  # the parent's row alone says otherwise
    plain.text = "coffee"
    plain.save()
    assert sync_loops() == 0
    assert list(Job.objects.values_list("owner_id", flat=True)) == ["KIM"]


def test_a_row_of_the_parent_under_a_child_is_synced_by_either() -> None:
    loud = LoudReminder.objects.create(text="tea", **HOURLY)
    LoudReminder.objects.update(cron="30 * * * *", volume=3)
    assert queued() == [(str(loud.pk), 12, 30)]
    QuietReminder.objects.update(cron="45 * * * *")
    assert queued() == [(str(loud.pk), 12, 45)]
    key = loud.pk
    loud.delete(keep_parents=True)
    sync_loops()
    assert queued() == [(str(key), 12, 45)]
    Reminder.objects.all().delete()
    assert queued() == []


def test_a_child_with_a_key_of_its_own_kind_is_known_by_its_parents() -> None:
    posters = [Poster.objects.create(text="tea", **HOURLY) for _ in range(2)]
    keys = [str(poster.id) for poster in posters]
    assert posters[0].pk != posters[0].id
    assert queued() == [(key, 13, 0) for key in keys]
    Poster.objects.update(cron="30 * * * *")
    assert queued() == [(key, 12, 30) for key in keys]
    Reminder._base_manager.update(cron="45 * * * *")
    assert sync_loops() == 2
    assert queued() == [(key, 12, 45) for key in keys]
    posters[0].delete()
    Poster.objects.all().delete()
    assert queued() == []


def test_keys_that_are_no_numbers() -> None:
    ticket = Ticket.objects.create(**HOURLY)
    page = Page.objects.create(path="/a b/é", **HOURLY)
    assert queued() == sorted([(str(ticket.pk), 13, 0), (page.pk, 13, 0)])
    ticket.delete()
    Page.objects.filter(path__startswith="/a").delete()
    assert queued() == []


def test_a_key_that_no_target_can_name_is_that_records_trouble_alone() -> None:
    Page.objects.bulk_create([Page(path="/" + "x" * 299, **HOURLY), Page(path="/b", **HOURLY)])
    assert queued() == [("/b", 13, 0)]
    errors = dict(Page.objects.values_list("path", "last_error"))
    assert errors.pop("/b") == ""
    assert "256" in next(iter(errors.values()))


def test_a_recurrence_spoiled_past_the_model_stays_without_a_job_until_it_is_mended() -> None:
    record = make()
    Reminder._base_manager.update(cron="61 * * * *")
    assert sync_loops() == 1
    for _ in range(2):
        assert queued() == []
        assert "minute" in stored(record).last_error
    Reminder._base_manager.update(cron="30 * * * *")
    assert sync_loops() == 1
    assert queued() == [(str(record.pk), 12, 30)]


# Times


@pytest.mark.parametrize("year", [1969, 9999])
def test_a_time_that_no_job_can_have_is_that_records_trouble_alone(year: int) -> None:
    far = make(cron="", next_run_at=datetime(year, 6, 1, tzinfo=UTC))
    record = make()
    assert "run_at" in far.last_error
    assert queued() == [(str(record.pk), 13, 0)]


def test_a_time_long_past_moves_to_the_next_and_a_far_one_waits() -> None:
    past = make(next_run_at=datetime(1999, 1, 1, tzinfo=UTC))
    grid = make(cron="", every=timedelta(seconds=1), next_run_at=datetime(1999, 1, 1, tzinfo=UTC))
    far = make(next_run_at=datetime(2090, 1, 1, tzinfo=UTC))
    assert past.next_run_at == NOON + timedelta(hours=1)
    assert grid.next_run_at == NOON + timedelta(seconds=1)
    assert far.next_run_at == datetime(2090, 1, 1, tzinfo=UTC)
    assert len(queued()) == 3


def test_a_revision_grows_although_the_hosts_clock_goes_back() -> None:
    record = make()
    ahead = record.updated_at + timedelta(hours=1)
    Reminder._base_manager.filter(pk=record.pk).update(updated_at=ahead)
    record.refresh_from_db()
    record.save()
    assert stored(record).updated_at > ahead


# Occurrences that came to an end


def test_a_record_disabled_while_it_runs_does_not_run_that_time_again() -> None:
    record = make(next_run_at=NOON)
    job = Job.objects.get()
    QueueEntry.objects.all().delete()
    Job.objects.update(state="running", claim_id=uuid.uuid4())
    record.enabled = False
    record.save()
    Job.objects.update(state="interrupted", finished_at=NOON)  # its process died
    syncing.jobs_ended([job.pk], "default")
    record.refresh_from_db()
    record.enabled = True
    record.save()
    assert queued() == [(str(record.pk), 13, 0)]


def test_a_record_whose_occurrence_nobody_holds_goes_on_at_once() -> None:
    """Repair ends it, and does not leave the record to the next reconcile."""
    record = make(next_run_at=NOON)
    QueueEntry.objects.all().delete()
    Job.objects.update(state="running", claim_id=uuid.uuid4())
    assert claims.repair(connection, "default").ended == 1
    record.refresh_from_db()
    assert record.last_occurrence_at == NOON
    assert queued() == [(str(record.pk), 13, 0)]


def test_no_occurrence_of_a_recurrence_that_is_none_is_requeued_or_stays() -> None:
    record = make()
    job = Job.objects.get()
    Reminder._base_manager.update(cron="61 * * * *")
    assert sync_loops() == 1
    with pytest.raises(WrongState, match=r"is to be mended first: Cron field minute"):
        requeue(job.pk)
    signals.requeue_guards, guards = [], signals.requeue_guards
    try:
        requeue(job.pk)  # by a process whose code knows nothing of it
    finally:
        signals.requeue_guards = guards
    assert waiting() == [(str(record.pk), 13, 0)]
    assert sync_loops() == 1
    assert queued() == []
    job.refresh_from_db()
    assert (job.state, job.cancelled_reason) == ("cancelled", "record_schedule_changed")


def test_a_cancelled_occurrence_is_requeued_while_its_record_waits_for_it() -> None:
    record = make()
    job = Job.objects.get()
    cancel(job.pk)
    requeue(job.pk)
    assert queued() == [(str(record.pk), 13, 0)]
    cancel(job.pk)
    record.enabled = False
    record.save()
    with pytest.raises(WrongState, match="moved on"):
        requeue(job.pk)


# Trouble


def test_an_error_of_ours_does_not_break_the_save(caplog: Any) -> None:
    record = make()
    record.cron = "30 * * * *"
    with mock.patch.object(syncing, "decide", side_effect=RuntimeError("a bug")):
        record.save()
        record.delete()
        record = make(text="coffee")
    assert "loop records not synced" in caplog.text
    assert waiting() == []  # the first one's job went with it
    sync_loops()
    assert queued() == [(str(record.pk), 13, 0)]


def test_an_error_of_ours_leaves_the_transaction_usable() -> None:
    with transaction.atomic(), mock.patch.object(syncing, "_write", side_effect=KeyError("bug")):
        record = make()
        record.save()
    sync_loops()
    assert queued() == [(str(record.pk), 13, 0)]


def test_an_error_of_the_databases_rolls_the_save_back() -> None:
    record = make()
    record.cron = "30 * * * *"
    with (
        mock.patch.object(syncing, "_write", side_effect=OperationalError("gone")),
        pytest.raises(OperationalError),
    ):
        record.save()
    assert stored(record).cron == "0 * * * *"
    assert queued() == [(str(record.pk), 13, 0)]


@pytest.mark.parametrize("answer", [None, 7, "x" * 300, "tab\t"])
def test_an_owner_that_is_none_is_that_records_trouble_alone(many_users: None, answer: Any) -> None:
    first, second = (make(owner_id=name) for name in ("kim", "lee"))

    def owner(self: Reminder) -> Any:
        return answer if self.pk == first.pk else self.owner_id

    with mock.patch.object(Reminder, "get_owner_id", owner):
        Reminder.objects.update(cron="30 * * * *")
        first.refresh_from_db()
        assert first.needs_owner if answer is None else "owner_id" in first.last_error
        assert (str(second.pk), 12, 30) in queued()


def test_many_users_may_be_a_function(settings: Any) -> None:
    answers = [True]
    settings.DURABLE_JOBS = {"MULTI_USER": lambda: answers[0]}
    try:
        record = make(owner_id="kim")
        assert list(Job.objects.values_list("owner_id", flat=True)) == ["kim"]
        answers[0] = False
        assert sync_loops() == 1
        assert list(Job.objects.values_list("owner_id", flat=True)) == ["local-user"]
        answers[0] = True
        Reminder._base_manager.filter(pk=record.pk).update(owner_id="")
        assert sync_loops() == 1
        assert queued() == []
    finally:
        durable_settings.reset()


# Records in another database


class Apart:
    """Keep reminders in a database of their own."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "apart" if issubclass(model, Reminder) else None

    db_for_write = db_for_read


@pytest.fixture
def apart(tmp_path: Path, settings: Any) -> Iterator[None]:
    here = connections["default"].settings_dict
    options = {"NAME": str(tmp_path / "apart.sqlite3"), "ENGINE": "django.db.backends.sqlite3"}
    fresh = {"HOST": "", "PORT": "", "USER": "", "PASSWORD": "", "OPTIONS": {"timeout": 20}}
    connections.settings["apart"] = {**here, **options, **fresh, "TEST": {}}
    settings.DATABASE_ROUTERS = [Apart()]
    try:
        connections["apart"].connect()  # pytest-django would not let it connect by itself
        with connections["apart"].schema_editor() as editor:
            editor.create_model(Reminder)
            for model in (LoudReminder, Sheet, Poster):
                editor.create_model(model)
        yield
    finally:
        connections["apart"].close()
        del connections["apart"], connections.settings["apart"]


@pytest.mark.usefixtures("apart")
def test_records_of_another_database_are_synced_when_they_are_committed() -> None:
    with transaction.atomic(using="apart"):
        record = make()
        loud = LoudReminder.objects.create(text="x", **HOURLY)
        assert waiting() == []
    assert queued() == [(str(record.pk), 13, 0), (str(loud.pk), 13, 0)]
    with transaction.atomic(using="apart"):
        Reminder.objects.filter(pk=record.pk).update(cron="30 * * * *")
        transaction.set_rollback(True, using="apart")
    assert queued() == [(str(record.pk), 13, 0), (str(loud.pk), 13, 0)]
    record.refresh_from_db()
    record.cron = "30 * * * *"
    record.save()
    loud.delete()
    assert queued() == [(str(record.pk), 12, 30)]
    Reminder.objects.all().delete()
    assert queued() == []


@pytest.mark.usefixtures("apart")
def test_an_error_behind_a_commit_elsewhere_is_logged_and_healed(caplog: Any) -> None:
    with mock.patch.object(syncing, "_write", side_effect=OperationalError("gone")):
        record = make()
    assert "gone" in caplog.text
    sync_loops()
    assert queued() == [(str(record.pk), 13, 0)]
