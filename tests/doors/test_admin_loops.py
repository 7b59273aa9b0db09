"""Loops, and a project's own loop records, in the admin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from django import forms
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse

from django_durable_jobs import admin as durable_admin
from django_durable_jobs import job
from django_durable_jobs.admin import LoopRecordAdminMixin, loopdeeds
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.jobspec import PAYLOAD_MAX_BYTES
from django_durable_jobs.models import Job, Loop, Schedule
from django_durable_jobs.registry import handlers
from django_durable_jobs.states import State
from django_durable_jobs.testing import run_due
from tests.app.models import LoudReminder, Reminder
from tests.doors.test_admin import (
    HOSTILE,
    Elements,
    client_with,
    list_of,
    page_of,
    rows_of,
    text_of,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)  # a Monday
YES = {"confirmed": "yes"}
SECRET = {"path": "open-1", "api_token": "s3cr3t-1"}
LOOP = ("view_loop", "add_loop", "change_loop", "delete_loop")


class ReminderForm(forms.ModelForm):
    """A form of a project's own, which knows nothing of ours."""

    def clean_text(self) -> str:
        return str(self.cleaned_data["text"]).strip()


class ReminderAdmin(LoopRecordAdminMixin, admin.ModelAdmin):
    form = ReminderForm

    class Media:
        js = ["reminders.js"]


class BareReminderAdmin(LoopRecordAdminMixin, admin.ModelAdmin):
    fields = ["text", "every"]


hosts = admin.AdminSite("hosts")
hosts.register(Reminder, ReminderAdmin)
bare = admin.AdminSite("bare")
bare.register(Reminder, BareReminderAdmin)
urlpatterns = [
    path("admin/", admin.site.urls),
    path("hosts/", hosts.urls),
    path("bare/", bare.urls),
]


@pytest.fixture(autouse=True)
def clock(settings: Any) -> Iterator[ManualClock]:
    settings.TIME_ZONE = "Europe/Vienna"
    manual = ManualClock(NOON)
    with use_clock(manual), handlers.preserved():

        @job("books.index")
        def index(path: str, api_token: str = "", n: Any = None) -> None: ...

        yield manual


def make(**values: Any) -> Loop:
    columns = {
        "name": "nightly", "job_type": "books.index", "payload": {"path": "open-1"},
        "cron": "0 * * * *", "timezone": "UTC",
    }  # fmt: skip
    return Loop.objects.create(**(columns | values))


def posted(**values: Any) -> dict[str, Any]:
    """Return what the form of a loop sends."""
    form = {
        "name": "nightly", "job_type": "books.index", "payload": '{"path": "open-1"}',
        "enabled": "on", "owner_id": "", "cron": "0 * * * *", "every": "", "baseline": "",
        "timezone": "UTC", "next_run_at_0": "", "next_run_at_1": "",
    }  # fmt: skip
    return {name: value for name, value in (form | values).items() if value is not None}


def add_url(model: str = "loop") -> str:
    return reverse(f"admin:django_durable_jobs_{model}_add")


def url_of(row: Any, deed: str, site: str = "admin") -> str:
    meta = row._meta
    return reverse(f"{site}:{meta.app_label}_{meta.model_name}_{deed}", args=[row.pk])


def said(response: Any) -> str:
    return " ".join(map(str, get_messages(response.wsgi_request)))


def queued(row: Any) -> list[datetime]:
    jobs = Job.objects.filter(target_kind="loop-record", target_id=str(row.pk), state="queued")
    return list(jobs.order_by("run_at").values_list("run_at", flat=True))


# Add, change, delete


@pytest.mark.parametrize(("right", "does"), [(right, right.split("_")[0]) for right in LOOP])
def test_each_of_djangos_own_permissions_allows_what_it_says_and_no_more(
    right: str, does: str
) -> None:
    loop = make()
    client = client_with(right)
    codes = {
        "view": (client.get(page_of(loop)), client.get(list_of("loop"))),
        "add": (client.get(add_url()), client.post(add_url(), posted(name="new"))),
        "change": (client.post(page_of(loop), posted(owner_id="acme", payload=None)),),
        "delete": (client.post(url_of(loop, "delete"), {"post": "yes"}),),
    }
    allowed = {"view": {"view"}, "change": {"view", "change"}}.get(does, {does})
    for name, responses in codes.items():
        for response in responses:
            assert (response.status_code in (200, 302)) == (name in allowed), (name, right)
    assert Loop.objects.filter(name="new").exists() == (does == "add")
    assert Loop.objects.filter(owner_id="acme").exists() == (does == "change")
    assert Loop.objects.filter(name="nightly").exists() == (does != "delete")
    for url in (list_of("loop"), page_of(loop), add_url()):
        assert Client().get(url).status_code == 302
        assert client_with().get(url).status_code == 403


def test_a_loop_is_added_with_its_job_and_its_next_run_is_told(admin_client: Client) -> None:
    response = admin_client.post(add_url(), posted())
    assert response.status_code == 302
    loop = Loop.objects.get()
    assert loop.payload == {"path": "open-1"}
    assert queued(loop) == [loop.next_run_at]
    assert "Next run: 2026-05-04 15:00:00 CEST" in said(response)
    assert LogEntry.objects.get().object_id == str(loop.pk)


def test_a_change_replaces_the_job_and_a_delete_cancels_it(admin_client: Client) -> None:
    loop = make()
    admin_client.post(page_of(loop), posted(cron="", every="00:05:00"))
    loop.refresh_from_db()
    assert queued(loop) == [loop.next_run_at] == [NOON + timedelta(minutes=5)]
    assert "s3cr3t" not in LogEntry.objects.get().change_message
    admin_client.post(url_of(loop, "delete"), {"post": "yes"})
    assert queued(loop) == []
    assert not Loop.objects.exists()
    other = make()
    chosen = {"action": "delete_selected", "_selected_action": other.pk, "post": "yes"}
    admin_client.post(list_of("loop"), chosen)
    assert queued(other) == []


@pytest.mark.parametrize(
    ("wrong", "field", "words"),
    [
        ({"cron": "0 25 * * *"}, "cron", "hour"),
        ({"cron": "0 0 31 2 *"}, "cron", "never come"),
        ({"every": "00:05:00"}, "every", "one of them"),
        ({"cron": "", "every": "00:00:00.5"}, "every", "1 second"),
        ({"baseline": "02:30"}, "baseline", "goes with every"),
        ({"timezone": "Europe/Vinna"}, "timezone", "Europe/Vienna"),
        ({"job_type": "books.gone"}, "job_type", "No handler"),
        ({"payload": '{"pth": 1}'}, "payload", "pth"),
        ({"payload": "{"}, "payload", "valid JSON"),
        ({"payload": '{"path": NaN}'}, "payload", "payload.path"),
        ({"payload": '{"path": "\\u0000"}'}, "payload", "NUL"),
        ({"payload": f'{{"n": {"9" * 5_000}}}'}, "payload", "valid JSON"),
        ({"payload": f'{{"n": {"[" * 50}{"]" * 50}}}'}, "payload", "nested too deep"),
        ({"payload": f'{{"n": {"[" * 100_000}'}, "payload", "valid JSON"),
        ({"payload": f'{{"path": "{"x" * PAYLOAD_MAX_BYTES}"}}'}, "payload", "too large"),
        ({"payload": "[]"}, "payload", "must be an object"),
        ({"name": ""}, "name", "required"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_nothing_is_saved(
    wrong: dict[str, str], field: str, words: str, admin_client: Client
) -> None:
    response = admin_client.post(add_url(), posted(**wrong))
    errors = response.context["adminform"].form.errors
    assert list(errors) == [field]
    assert words in str(errors[field])
    assert not Loop.objects.exists()
    assert "Please correct the error" in text_of(response)


def test_an_empty_payload_is_an_empty_object(admin_client: Client) -> None:
    @job("books.nothing")
    def nothing() -> None: ...

    admin_client.post(add_url(), posted(job_type="books.nothing", payload=""))
    assert Loop.objects.get().payload == {}


def test_a_form_that_stood_open_does_not_bring_back_an_old_time(
    admin_client: Client, clock: ManualClock
) -> None:
    loop = make()
    form = admin_client.get(page_of(loop)).context["adminform"].form
    shown = {}
    for n, each in enumerate(form["next_run_at"].as_widget().split("value=")[1:]):
        shown[f"next_run_at_{n}"] = shown[f"initial-next_run_at_{n}"] = each.split('"')[1]
    assert shown["next_run_at_1"] == "15:00:00"
    later = NOON + timedelta(hours=3)
    Loop.objects.filter(pk=loop.pk).update(next_run_at=later)
    admin_client.post(page_of(loop), posted(owner_id="acme", **shown))
    loop.refresh_from_db()
    assert (loop.owner_id, loop.next_run_at) == ("acme", later)
    admin_client.post(page_of(loop), posted(**(shown | {"next_run_at_1": "19:30:00"})))
    loop.refresh_from_db()
    assert queued(loop) == [loop.next_run_at] == [NOON + timedelta(hours=5, minutes=30)]


def test_types_are_offered_but_not_those_of_loop_records(admin_client: Client) -> None:
    text = text_of(admin_client.get(add_url()))
    assert '<option value="books.index">' in text
    assert '<option value="Europe/Vienna">' in text
    assert '<option value="loop-occurrence' not in text
    unknown = make(job_type="books.gone")
    assert 'value="books.gone"' in text_of(admin_client.get(page_of(unknown)))


# The preview


def preview_url(loop: Loop | None = None) -> str:
    if loop is None:
        return reverse("admin:django_durable_jobs_loop_preview_new")
    return url_of(loop, "preview")


def times(text: str) -> list[str]:
    """Return the times in UTC that a preview tells."""
    return re.findall(r"</td><td>(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)</td>", text)


def test_a_preview_tells_the_next_ten_runs_in_words_with_lint_and_saves_nothing(
    admin_client: Client,
) -> None:
    form = posted(cron="* 5 * * *", timezone="Europe/Vienna")
    text = text_of(admin_client.post(preview_url(), form))
    assert times(text)[0] == "2026-05-05 03:00:00"
    assert len(times(text)) == 10
    assert "2026-05-05 05:00:00" in text
    assert "did you mean `0 5 * * *`?" in text
    assert "<html" not in text
    whole = admin_client.post(add_url(), form | {"_preview": "yes"})
    assert times(text_of(whole)) == times(text)
    assert 'value="* 5 * * *"' in text_of(whole)
    assert "Please correct" not in text_of(whole)
    loop = make()
    before = Loop.objects.values().get()
    admin_client.post(page_of(loop), form | {"_preview": "yes"})
    admin_client.post(preview_url(loop), form)
    assert Loop.objects.values().get() == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("changes", "first", "second"),
    [
        ({}, "13:00", "14:00"),
        ({"cron": "30 * * * *"}, "12:30", "13:30"),
        ({"cron": "", "every": "00:07:00"}, "12:07", "12:14"),
        ({"cron": "", "every": "06:00:00", "baseline": "02:30"}, "14:30", "20:30"),
        (
            {"cron": "", "every": "00:07:00", "next_run_at_0": "2026-05-04",
             "next_run_at_1": "18:00:00"},
            "16:00", "16:07",
        ),
        ({"next_run_at_0": "2026-05-04", "next_run_at_1": "18:10:00"}, "16:10", "17:00"),
    ],
)  # fmt: skip
def test_a_preview_says_what_a_save_then_does(
    changes: dict[str, str], first: str, second: str, admin_client: Client
) -> None:
    loop = make()
    assert loop.next_run_at is not None
    form = posted(**changes)
    found = times(text_of(admin_client.post(preview_url(loop), form)))
    assert [each[11:16] for each in found[:2]] == [first, second]
    admin_client.post(page_of(loop), form)
    loop.refresh_from_db()
    assert f"{loop.next_run_at:%Y-%m-%d %H:%M:%S}" == found[0]
    shown = times(text_of(admin_client.get(page_of(loop))))
    assert shown == found


def test_a_preview_of_a_single_run_and_of_none(admin_client: Client) -> None:
    once = posted(cron="", next_run_at_0="2026-05-05", next_run_at_1="02:00:00")
    text = text_of(admin_client.post(preview_url(), once))
    assert "once" in text
    assert times(text) == ["2026-05-05 00:00:00"]
    text = text_of(admin_client.post(preview_url(), posted(cron="")))
    assert "never" in text
    assert times(text) == []
    disabled = text_of(admin_client.post(preview_url(), posted(enabled=None)))
    assert "It is disabled" in disabled


@pytest.mark.parametrize(
    "wrong",
    [{"cron": "0 25 * * *"}, {"timezone": "<script>"}, {"every": "soon"}, {"cron": HOSTILE}],
)
def test_a_preview_of_a_wrong_rule_says_what_is_wrong(
    wrong: dict[str, str], admin_client: Client
) -> None:
    text = text_of(admin_client.post(preview_url(), posted(**wrong)))
    assert 'class="errornote"' in text
    assert "<script" not in text
    assert times(text) == []
    whole = text_of(admin_client.post(add_url(), posted(**wrong) | {"_preview": "yes"}))
    assert times(whole) == []


def test_a_preview_takes_the_right_to_save_a_post_and_the_token(admin_user: Any) -> None:
    loop = make()
    for url, right in ((preview_url(), "add_loop"), (preview_url(loop), "change_loop")):
        assert Client().post(url, posted()).status_code == 302
        for codenames in ((), ("view_loop",), (*({*LOOP} - {right}),)):
            assert client_with(*codenames).post(url, posted()).status_code == 403
        client = client_with(right)
        assert client.post(url, posted()).status_code == 200
        assert client.get(url).status_code == 405
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(admin_user)
        assert strict.post(url, posted()).status_code == 403
    assert "data-ddj-preview" not in text_of(client_with("view_loop").get(page_of(loop)))
    gone = preview_url(loop)
    loop.delete()
    client = Client()
    client.force_login(admin_user)
    assert client.post(gone, posted()).status_code == 404


# The payload


def test_without_view_payload_it_is_neither_shown_nor_changed(admin_client: Client) -> None:
    loop = make(payload=SECRET)
    client = client_with("view_loop", "change_loop")
    text = text_of(client.get(page_of(loop)))
    assert not re.search(r"open-1|s3cr3t", text)
    assert "permission to see payloads" in text
    client.post(page_of(loop), posted(payload='{"path": "mine"}', owner_id="acme"))
    loop.refresh_from_db()
    assert (loop.payload, loop.owner_id) == (SECRET, "acme")
    text = text_of(client_with("view_loop", "view_secrets").get(page_of(loop)))
    assert not re.search(r"open-1|s3cr3t", text)
    text = text_of(client_with("view_loop").get(page_of(loop)))
    assert not re.search(r"open-1|s3cr3t", text)


def test_with_view_payload_what_is_masked_is_not_shown_and_so_not_changed() -> None:
    loop = make(payload=SECRET)
    client = client_with("view_loop", "change_loop", "view_payload")
    text = text_of(client.get(page_of(loop)))
    assert "open-1" in text
    assert "s3cr3t" not in text
    assert "takes the permission to see them" in text
    client.post(page_of(loop), posted(payload='{"path": "mine"}'))
    loop.refresh_from_db()
    assert loop.payload == SECRET
    plain = make(name="plain")
    client.post(page_of(plain), posted(name="plain", payload='{"path": "mine"}'))
    plain.refresh_from_db()
    assert plain.payload == {"path": "mine"}
    seer = client_with("view_loop", "change_loop", "view_payload", "view_secrets")
    assert "s3cr3t-1" in text_of(seer.get(page_of(loop)))
    seer.post(page_of(loop), posted(payload='{"path": "mine", "api_token": "new"}'))
    loop.refresh_from_db()
    assert loop.payload == {"path": "mine", "api_token": "new"}


def test_what_is_wrong_with_a_hidden_payload_does_not_show_it() -> None:
    loop = make(payload={"s3cr3t-key": "s3cr3t-1"})
    client = client_with("view_loop", "change_loop")
    text = text_of(client.post(page_of(loop), posted(payload=None)))
    assert "what is stored does not fit; you may not see it" in text
    assert "s3cr3t" not in text


@pytest.mark.parametrize(
    "lookup", ["payload__path", "payload__api_token__startswith", "last_error"]
)
def test_what_is_hidden_cannot_be_probed_by_the_address(lookup: str) -> None:
    make(payload=SECRET)
    assert client_with("view_loop").get(list_of("loop"), {lookup: "s"}).status_code == 400


def test_lists_leave_payloads_in_the_database(admin_client: Client) -> None:
    make()
    with CaptureQueriesContext(connection) as context:
        text_of(admin_client.get(list_of("loop")))
    table = connection.ops.quote_name("django_durable_jobs_loop")
    listing = [query["sql"] for query in context if f"FROM {table}" in query["sql"]]
    assert listing
    assert not any(connection.ops.quote_name("payload") in sql for sql in listing)


def spoil(loop: Loop) -> None:
    """Store a payload with a number that Python refuses to read for its length."""
    cast = "::jsonb" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE django_durable_jobs_loop SET payload = %s{cast} WHERE id = %s",
            [f'{{"n": {"9" * 5_000}}}', loop.pk],
        )


def test_a_payload_that_cannot_be_read_breaks_no_page_and_can_be_replaced(
    admin_client: Client,
) -> None:
    loop, neighbour = make(), make(name="other")
    spoil(loop)
    assert rows_of(admin_client.get(list_of("loop"))) == [loop, neighbour]
    partly = client_with("view_loop", "change_loop", "fire_loop")
    assert partly.get(page_of(loop)).status_code == 200
    assert partly.post(page_of(loop), posted(payload=None)).status_code == 403
    chosen = {"action": "disable_selected", "_selected_action": [loop.pk, neighbour.pk]}
    response = admin_client.post(list_of("loop"), chosen | YES)
    assert "Its row cannot be read" in said(response)
    assert "Disabled: 1. <bdi>other</bdi>" in said(response)
    assert "The stored payload is no JSON" in text_of(admin_client.get(page_of(loop)))
    admin_client.post(page_of(loop), posted(payload='{"path": "mended"}'))
    assert Loop.objects.get(pk=loop.pk).payload == {"path": "mended"}


# Steering


DEEDS = [
    ("enable", "change_loop", {"enabled": False}),
    ("disable", "change_loop", {}),
    ("run_now", "fire_loop", {}),
]


def was_done(deed: str, loop: Loop, before: Loop) -> bool:
    now = Loop.objects.get(pk=loop.pk)
    if deed == "run_now":
        return now.schedule_epoch != before.schedule_epoch
    return now.enabled != before.enabled


@pytest.mark.parametrize(("deed", "permission", "values"), DEEDS)
def test_each_deed_takes_its_own_permission_and_that_to_view(
    deed: str, permission: str, values: dict[str, Any]
) -> None:
    loop = make(**values)
    before = Loop.objects.get()
    url = url_of(loop, deed)
    assert Client().post(url, YES).status_code == 302
    other = "fire_loop" if permission == "change_loop" else "change_loop"
    for codenames in ((), ("view_loop",), ("view_loop", other, "sync_loop"), ("fire_loop",)):
        client = client_with(*codenames)
        assert client.post(url).status_code == client.post(url, YES).status_code == 403
        action = f"{deed.removesuffix('_now')}_selected"
        client.post(list_of("loop"), {"action": action, "_selected_action": loop.pk} | YES)
        if "view_loop" in codenames:
            assert f'action="{url}"' not in text_of(client.get(page_of(loop)))
        assert not was_done(deed, loop, before)
    assert not LogEntry.objects.exists()
    client = client_with("view_loop", permission)
    assert client.get(url).status_code == 405
    assert f'action="{url}"' in text_of(client.get(page_of(loop)))
    assert "Yes, " in text_of(client.post(url))
    assert not was_done(deed, loop, before)
    assert client.post(url, YES).status_code == 302
    assert was_done(deed, loop, before)
    assert LogEntry.objects.get().object_id == str(loop.pk)


def test_a_post_needs_the_token(admin_user: Any) -> None:
    loop = make()
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    for deed in ("disable", "run_now"):
        assert client.post(url_of(loop, deed), YES).status_code == 403
    sync = reverse("admin:django_durable_jobs_loop_sync")
    assert client.post(sync, YES).status_code == 403
    token = {"csrfmiddlewaretoken": client.get(page_of(loop)).context["csrf_token"]}
    assert client.post(url_of(loop, "disable"), YES | token).status_code == 302
    assert not Loop.objects.get().enabled


def test_disabling_cancels_its_job_and_enabling_brings_it_back(admin_client: Client) -> None:
    loop = make()
    admin_client.post(url_of(loop, "disable"), YES)
    assert queued(loop) == []
    assert "It is disabled already." in said(admin_client.post(url_of(loop, "disable"), YES))
    admin_client.post(url_of(loop, "enable"), YES)
    assert queued(loop) == [NOON + timedelta(hours=1)]
    assert LogEntry.objects.count() == 2


def test_a_selection_is_told_one_by_one_what_was_done_and_what_was_not(
    admin_client: Client,
) -> None:
    loops = [make(name=name, enabled=name != "b") for name in ("a", "b", "c")]
    chosen = {"action": "disable_selected", "_selected_action": [each.pk for each in loops]}
    text = text_of(admin_client.post(list_of("loop"), chosen))
    assert "2 loops" in text
    assert "1 loop is left as it is" in text
    loops[2].delete()
    response = admin_client.post(list_of("loop"), chosen | YES)
    assert "Disabled: 1. <bdi>a</bdi>" in said(response)
    assert "<bdi>b</bdi>: It is disabled already." in said(response)


def test_run_now_puts_it_in_at_once_and_links_the_job(admin_client: Client) -> None:
    loop = make()
    response = admin_client.post(url_of(loop, "run_now"), YES)
    kept = Loop.objects.get()
    found = Job.objects.get(state="queued")
    assert found.run_at == kept.next_run_at
    assert str(found.pk) in said(response)
    assert str(found.pk) in LogEntry.objects.get().get_change_message()
    assert str(found.pk) in text_of(admin_client.get(page_of(loop)))
    assert str(found.pk) in text_of(admin_client.get(list_of("loop")))


def test_a_double_click_runs_it_once(admin_client: Client) -> None:
    loop = make()
    asked = admin_client.post(url_of(loop, "run_now"))
    seen = re.findall(r'name="seen" value="([^"]+)"', text_of(asked))
    answer = YES | {"seen": seen}
    assert "Put in: 1." in said(admin_client.post(url_of(loop, "run_now"), answer))
    epoch = Loop.objects.get().schedule_epoch
    again = admin_client.post(url_of(loop, "run_now"), answer)
    assert "It was changed, or run, since you were asked" in said(again)
    assert Loop.objects.get().schedule_epoch == epoch
    assert LogEntry.objects.count() == 1


def test_what_cannot_run_now_says_why(admin_client: Client, settings: Any) -> None:
    disabled, broken = make(enabled=False), make(name="broken", cron="0 25 * * *")
    assert b"Yes, " not in admin_client.post(url_of(disabled, "run_now")).content
    assert "enable it first" in said(admin_client.post(url_of(disabled, "run_now"), YES))
    assert "broken</bdi>: Cron field hour" in said(
        admin_client.post(url_of(broken, "run_now"), YES)
    )
    settings.DURABLE_JOBS = {"MULTI_USER": True}
    nobodys = make(name="nobodys")
    assert "It has no owner" in said(admin_client.post(url_of(nobodys, "run_now"), YES))
    durable_settings.reset()
    assert not LogEntry.objects.exists()


def test_a_record_that_goes_while_the_question_stands_is_told_of(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make()
    kept = Loop.objects.get()
    urls = [url_of(loop, deed) for deed in ("enable", "disable", "run_now")]
    loop.delete()
    for url in urls:
        response = admin_client.post(url, YES)
        assert response.status_code == 302
        assert "No such record." in said(response)
    from django_durable_jobs.admin import LoopAdmin

    monkeypatch.setattr(LoopAdmin, "get_object", lambda *args: kept)
    for url in urls:
        assert "It does not exist any more." in said(admin_client.post(url, YES))
    assert not LogEntry.objects.exists()


def test_sync_takes_its_permission_asks_first_and_finds_what_no_signal_told_of(
    admin_client: Client,
) -> None:
    loop = make()
    Loop._base_manager.filter(pk=loop.pk)._raw_delete("default")
    url = reverse("admin:django_durable_jobs_loop_sync")
    assert queued(loop) != []
    assert Client().post(url, YES).status_code == 302
    for codenames in ((), LOOP, ("view_loop", "fire_loop"), ("sync_loop",)):
        assert client_with(*codenames).post(url, YES).status_code == 403
    client = client_with("view_loop", "sync_loop")
    assert f'action="{url}"' in text_of(client.get(list_of("loop")))
    assert client.get(url).status_code == 405
    assert "Yes, sync all" in text_of(client.post(url))
    assert queued(loop) != []
    assert "Synced: 1 record was changed." in said(client.post(url, YES))
    assert queued(loop) == []
    assert LogEntry.objects.get().change_message == "Synced: 1 record was changed."
    assert "Synced: 1 record" in text_of(client.get(reverse("admin:index")))


# Looking


def test_the_page_links_the_occurrences_and_what_they_put_in(
    admin_client: Client, clock: ManualClock
) -> None:
    loop = make()
    clock.move_to(NOON + timedelta(hours=1))
    run_due()
    work = Job.objects.get(type="books.index")
    occurrences = Job.objects.filter(target_kind="loop-record")
    assert occurrences.count() == 2
    text = text_of(admin_client.get(page_of(loop)))
    for each in (work, *occurrences):
        assert reverse("admin:django_durable_jobs_job_change", args=[each.pk]) in text
    assert ">completed</span>" in text
    Job.objects.all().delete()
    assert "None: no job of it is kept." in text_of(admin_client.get(page_of(loop)))
    assert rows_of(admin_client.get(list_of("loop"))) == [loop]


def test_filters_and_search_find_loops(admin_client: Client) -> None:
    one = make(name="a", owner_id="acme")
    other = make(name="b", enabled=False, job_type="books.other")
    broken = make(name="c", cron="0 25 * * *")

    def found(**query: str) -> list[Any]:
        return rows_of(admin_client.get(list_of("loop"), query))

    assert found() == [one, other, broken]
    assert found(enabled__exact="0") == found(job_type="books.other") == [other]
    assert found(failing="yes") == [broken]
    assert found(needs_owner__exact="1") == found(q="acm") == []
    assert found(q="a") == found(q=" acme ") == [one]
    assert found(q="books.other") == [other]


def test_a_list_takes_the_same_number_of_queries_however_long_it_is(admin_client: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as context:
            text_of(admin_client.get(list_of("loop")))
        return len(context)

    make()
    few = queries()
    for n in range(12):
        make(name=f"n{n}")
    assert queries() == few <= 8


def test_hostile_text_stays_text_on_every_page(admin_client: Client) -> None:
    def all_pages(text: str) -> list[str]:
        loop = make(name=text[:200], job_type=text, owner_id=text, payload={"path": text})
        Loop._base_manager.filter(pk=loop.pk).update(last_error=text, cron=text[:256])
        Job.objects.update(cancelled_reason=text)
        gets = [list_of("loop"), page_of(loop), url_of(loop, "delete")]
        found = [text_of(admin_client.get(url)) for url in gets]
        found.append(text_of(admin_client.post(url_of(loop, "run_now"))))
        found.append(
            text_of(admin_client.post(page_of(loop), posted(name=text[:200], payload=text)))
        )
        wrong = posted(name=text[:200], job_type=text, cron=text, timezone=text[:64], every=text)
        found.append(text_of(admin_client.post(page_of(loop), wrong)))
        found.append(text_of(admin_client.post(preview_url(loop), wrong)))
        admin_client.post(url_of(loop, "run_now"), YES)  # refused: its rule is none
        admin_client.post(url_of(loop, "disable"), YES)
        found.append(text_of(admin_client.get(page_of(loop))))
        found.append(text_of(admin_client.get(url_of(loop, "history"))))
        Loop.objects.all().delete()
        LogEntry.objects.all().delete()
        Job.objects.all().delete()
        return found

    plain = [Elements(text) for text in all_pages("harmless")]
    for hostile in (HOSTILE, "\u202egnp.exe" + HOSTILE):
        for one, other in zip(plain, map(Elements, all_pages(hostile)), strict=True):
            assert other.tags == one.tags
            assert other.names == one.names


def test_pages_have_no_script_or_style_of_their_own_inside(admin_client: Client) -> None:
    loop = make()
    for text in (
        text_of(admin_client.get(page_of(loop))),
        text_of(admin_client.get(list_of("loop"))),
        text_of(admin_client.get(add_url())),
    ):
        assert not re.search(r"<style|\sstyle=|\son\w+=", text)
        assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", text))


# A project's own records


def remind(**values: Any) -> Reminder:
    columns = {"text": "tea", "cron": "0 * * * *", "timezone": "UTC"}
    return Reminder.objects.create(**(columns | values))


def reminder_form(**values: Any) -> dict[str, Any]:
    own = {"name": None, "job_type": None, "payload": None, "text": "tea", "refuses": ""}
    return posted(**(own | values))


def test_a_projects_own_records_have_the_same_pages(admin_client: Client) -> None:
    reminder = remind()
    response = admin_client.get(url_of(reminder, "change", "hosts"))
    assert len(times(text_of(response))) == 10
    assert "reminders.js" in text_of(response)
    assert "django_durable_jobs/admin.js" in text_of(response)
    titles = [fieldset.name for fieldset in response.context["adminform"]]
    assert [str(title) for title in titles] == ["None", "When", "How it went"]
    listing = admin_client.get(reverse("hosts:testapp_reminder_changelist"))
    assert rows_of(listing) == [reminder]
    response = admin_client.post(url_of(reminder, "run_now", "hosts"), YES)
    assert Reminder.objects.get().schedule_epoch == 1
    admin_client.post(url_of(reminder, "disable", "hosts"), YES)
    assert queued(reminder) == []
    sync = admin_client.post(reverse("hosts:testapp_reminder_sync"), YES)
    assert "Synced: 0 records were changed." in said(sync)


def test_a_projects_own_form_previews_and_saves_nothing_by_it(admin_client: Client) -> None:
    reminder = remind()
    url = url_of(reminder, "change", "hosts")
    changed = reminder_form(cron="30 * * * *", text=" coffee ")
    response = admin_client.post(url, changed | {"_preview": "yes"})
    assert times(text_of(response))[0] == "2026-05-04 12:30:00"
    assert Reminder.objects.get().cron == "0 * * * *"
    admin_client.post(url, changed)
    kept = Reminder.objects.get()
    assert (kept.cron, kept.text) == ("30 * * * *", "coffee")


def test_a_form_without_all_fields_says_at_its_top_what_is_wrong_with_the_others(
    admin_client: Client,
) -> None:
    reminder = remind()
    url = url_of(reminder, "change", "bare")
    assert admin_client.get(url).status_code == 200
    response = admin_client.post(url, {"text": "tea", "every": "00:05:00"})
    assert "accepted: one of them" in text_of(response)
    Reminder._base_manager.update(cron="nonsense")
    response = admin_client.post(url, {"text": "tea", "every": ""})
    assert response.status_code == 200
    assert "Cron: " in str(response.context["adminform"].form.non_field_errors())


def test_rights_to_a_projects_records_are_the_projects(admin_client: Client) -> None:
    reminder = remind()
    user = User.objects.create_user("host", is_staff=True)
    client = Client()
    client.force_login(user)
    url = url_of(reminder, "disable", "hosts")
    user.user_permissions.set(Permission.objects.filter(codename__in=("view_reminder",)))
    assert client.post(url, YES).status_code == 403
    user.user_permissions.set(Permission.objects.filter(codename__in=LOOP))
    assert client.post(url, YES).status_code == 403
    rights = ("view_reminder", "change_reminder")
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    assert client.post(url, YES).status_code == 302
    assert not Reminder.objects.get().enabled
    assert client.post(url_of(reminder, "run_now", "hosts"), YES).status_code == 403


def test_a_record_is_steered_as_what_it_is(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = LoudReminder.objects.create(text="tea", cron="0 * * * *", timezone="UTC")
    saved = []
    monkeypatch.setattr(
        LoudReminder, "run_now", lambda self: saved.append(type(self)) or Reminder.run_now(self)
    )
    admin_client.post(url_of(Reminder.objects.get(pk=loud.pk), "run_now", "hosts"), YES)
    assert saved == [LoudReminder]


def test_a_hook_that_raises_breaks_neither_the_list_nor_the_page(admin_client: Client) -> None:
    reminder = remind(refuses="project")
    assert "no project" in reminder.last_error
    text = text_of(admin_client.get(url_of(reminder, "change", "hosts")))
    assert "no project" in text
    text_of(admin_client.get(reverse("hosts:testapp_reminder_changelist")))
    response = admin_client.post(url_of(reminder, "run_now", "hosts"), YES)
    assert "no project" in said(response)
    url = url_of(reminder, "change", "hosts")
    response = admin_client.post(url, reminder_form(refuses="project"))
    assert "It has no job: " in said(response)


def test_the_latest_occurrences_are_so_many(
    admin_client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopdeeds, "MOST_OCCURRENCES", 2)
    reminder = remind(timezone="UTC", baseline=time(0), cron="", every=timedelta(hours=1))
    for hour in range(1, 4):
        clock.move_to(NOON + timedelta(hours=hour))
        run_due()
    response = admin_client.get(url_of(reminder, "change", "hosts"))
    found = [each["job"].state for each in response.context["occurrences"]]
    assert found == [State.QUEUED, State.COMPLETED]


def test_the_page_of_the_admin_names_what_there_is() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "admin.md").read_text()
    rows = re.findall(r"^\| (`\w+_\w+`(?:, `\w+`)*) \|", page, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    ours = {name for model in (Job, Loop, Schedule) for name, _ in model._meta.permissions}
    there = set(Permission.objects.values_list("codename", flat=True))
    assert named <= there
    assert ours <= named
    for name in set(re.findall(r"`(\w+Mixin)`", page)):
        assert hasattr(durable_admin, name)
