"""Schedules, their ticks and what they missed, in the admin."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_durable_jobs import pause_schedule, schedule
from django_durable_jobs.admin import base, ledger
from django_durable_jobs.models import Job, Schedule, TickClaim, TickGap
from django_durable_jobs.registry import schedules
from tests.clockwork import Clockwork, at, clockwork, end, fired, jobs, missed, row
from tests.doors.test_admin import (
    HOSTILE,
    Elements,
    client_with,
    list_of,
    page_of,
    rows_of,
    text_of,
)

pytestmark = pytest.mark.django_db(transaction=True)

YES = {"confirmed": "yes"}
RIGHT_TO_LEFT = "\u202egnp.exe"


@pytest.fixture
def work(transactional_db: None, settings: Any) -> Iterator[Clockwork]:
    settings.TIME_ZONE = "Europe/Vienna"
    with clockwork() as each:
        yield each


def hourly(work: Clockwork, name: str = "s", **options: Any) -> Schedule:
    """Declare a schedule that fires every hour, and have the leader take it."""
    schedule(name, run=lambda: None, **{"cron": "0 * * * *", "timezone": "UTC", **options})
    work.start()
    return row(name)


def url_of(row: Any, deed: str) -> str:
    return reverse(f"admin:django_durable_jobs_{row._meta.model_name}_{deed}", args=[row.pk])


def said(response: Any) -> str:
    return " ".join(map(str, get_messages(response.wsgi_request)))


# Who may do what


DEEDS = [
    ("pause", "pause_schedule"),
    ("resume", "pause_schedule"),
    ("fire", "fire_schedule"),
    ("make_up", "fire_schedule"),
]


def made_ready(work: Clockwork, deed: str) -> tuple[Schedule, dict[str, str], Any]:
    """Return a schedule, what is posted to do the deed, and how to see that it was done."""
    hourly(work)
    if deed == "resume":
        pause_schedule("s")
        return row("s"), YES, lambda: row("s").paused_at is None
    if deed == "make_up":
        pause_schedule("s")
        work.walk(at(14, 30), step=600)
        tick = {"tick": at(13).isoformat()}
        return row("s"), YES | tick, lambda: fired("s", "manual") == [at(13)]
    if deed == "pause":
        return row("s"), YES, lambda: row("s").paused_at is not None
    return row("s"), YES, lambda: bool(fired("s", "manual"))


@pytest.mark.parametrize(("deed", "permission"), DEEDS)
def test_each_deed_takes_its_own_permission_and_that_to_view(
    deed: str, permission: str, work: Clockwork
) -> None:
    each, yes, done = made_ready(work, deed)
    url = url_of(each, deed)
    assert Client().post(url, yes).status_code == 302
    other = "fire_schedule" if permission == "pause_schedule" else "pause_schedule"
    view = "view_schedule"
    for codenames in ((), (view,), (view, other), (view, "change_schedule"), (permission,)):
        client = client_with(*codenames)
        assert client.post(url).status_code == client.post(url, yes).status_code == 403
        if deed != "make_up":
            action = {"action": f"{deed}_selected", "_selected_action": each.pk}
            client.post(list_of("schedule"), action | yes)
        if view in codenames:
            assert url not in text_of(client.get(page_of(each)))
        assert not done()
    assert not LogEntry.objects.exists()
    client = client_with(view, permission)
    assert url in text_of(client.get(page_of(each)))
    assert client.post(url, yes).status_code == 302
    assert done()
    assert LogEntry.objects.get().object_id == str(each.pk)


@pytest.mark.parametrize(("deed", "permission"), DEEDS)
def test_a_get_changes_nothing_a_first_post_only_asks_and_each_post_needs_the_token(
    deed: str, permission: str, work: Clockwork, admin_user: Any
) -> None:
    each, yes, done = made_ready(work, deed)
    url = url_of(each, deed)
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    for method in (client.get, client.head, client.put):
        assert method(url, yes).status_code in (403, 405)
    assert client.get(url).status_code == 405
    assert client.post(url, yes).status_code == 403
    token = {"csrfmiddlewaretoken": client.get(page_of(each)).context["csrf_token"]}
    asking = {name: value for name, value in yes.items() if name != "confirmed"}
    assert "Yes, " in text_of(client.post(url, asking | token))
    assert not done()
    assert not LogEntry.objects.exists()
    assert client.post(url, yes | token).status_code == 302
    assert done()


@pytest.mark.parametrize("model", ["schedule", "tickclaim", "tickgap"])
def test_nobody_can_add_change_or_delete(model: str, work: Clockwork, admin_client: Client) -> None:
    each = {"schedule": hourly, "tickclaim": claim, "tickgap": gap}[model](work)
    before = type(each).objects.values().get(pk=each.pk)
    everything = {field.attname: "1" for field in each._meta.fields}
    assert admin_client.get(list_of(model) + "add/").status_code == 403
    assert admin_client.post(page_of(each), everything).status_code == 403
    delete = reverse(f"admin:django_durable_jobs_{model}_delete", args=[each.pk])
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": each.pk, "post": "yes"}
    admin_client.post(list_of(model), chosen)
    assert type(each).objects.values().get(pk=each.pk) == before
    for url in (list_of(model), page_of(each)):
        assert Client().get(url).status_code == 302
        assert client_with().get(url).status_code == 403
        assert client_with(f"view_{model}").get(url).status_code == 200


def claim(work: Clockwork, **values: Any) -> TickClaim:
    columns = {
        "namespace": "default", "name": "s", "scheduled_at": at(11), "claimed_at": at(11),
        "outcome": "fired",
    }  # fmt: skip
    return TickClaim.objects.create(**(columns | values))


def gap(work: Clockwork, **values: Any) -> TickGap:
    columns = {
        "namespace": "default", "name": "s", "first": at(8), "last": at(10), "count": 3,
        "reason": "downtime",
    }  # fmt: skip
    return TickGap.objects.create(**(columns | values))


# Steering


def test_a_pause_says_by_whom_and_why_on_the_row_in_the_list_and_in_the_history(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    reason = "<b>moved</b> " + "x" * 2_000
    response = admin_client.post(url_of(each, "pause"), YES | {"reason": reason})
    assert "Paused: 1. <bdi>s</bdi>" in said(response)
    kept = row("s")
    assert (kept.paused_by, kept.paused_reason) == ("admin", reason[:1_024])
    for url in (page_of(each), list_of("schedule")):
        text = text_of(admin_client.get(url))
        assert "&lt;b&gt;moved" in text
        assert "<bdi>admin</bdi>" in text
    history = text_of(admin_client.get(url_of(each, "history")))
    assert "Paused. Reason: &lt;b&gt;moved" in history


def test_a_second_pause_leaves_the_first_and_is_told_of(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    pause_schedule("s", by="ann", reason="first")
    assert b"Yes, " not in admin_client.post(url_of(each, "pause")).content
    response = admin_client.post(url_of(each, "pause"), YES | {"reason": "second"})
    assert "It was paused already" in said(response)
    assert (row("s").paused_by, row("s").paused_reason) == ("ann", "first")
    assert not LogEntry.objects.exists()


def test_a_second_resume_is_told_of(work: Clockwork, admin_client: Client) -> None:
    each = hourly(work)
    pause_schedule("s")
    assert "Resumed: 1." in said(admin_client.post(url_of(each, "resume"), YES))
    assert "It is not paused." in said(admin_client.post(url_of(each, "resume"), YES))
    assert LogEntry.objects.count() == 1


def asked(response: Any) -> dict[str, str]:
    """Return what the page that asks sends back."""
    return YES | {"asked_at": response.context["asked_at"]}


@pytest.mark.parametrize("force", [{}, {"force": "yes"}])
def test_a_double_click_fires_once_whether_it_is_forced_or_not(
    force: dict[str, str], work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    answer = asked(admin_client.post(url_of(each, "fire"))) | force
    work.clock.advance(1)
    first = said(admin_client.post(url_of(each, "fire"), answer))
    assert "Fired: 1." in first
    assert str(jobs("s")[0].pk) in first
    end(jobs("s")[0])
    work.clock.advance(1)
    second = said(admin_client.post(url_of(each, "fire"), answer))
    assert "It was fired by hand since you were asked" in second
    assert len(fired("s", "manual")) == LogEntry.objects.count() == 1
    again = admin_client.post(url_of(each, "fire"), asked(admin_client.post(url_of(each, "fire"))))
    assert "Fired: 1." in said(again)


def test_beside_an_earlier_run_it_fires_only_where_it_is_forced(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    work.go(at(13))
    response = admin_client.post(url_of(each, "fire"), YES)
    assert "is in flight" in said(response)
    assert fired("s", "manual") == []
    work.clock.advance(1)
    admin_client.post(url_of(each, "fire"), YES | {"force": "yes"})
    assert len(fired("s", "manual")) == 1
    assert "With force." in LogEntry.objects.get().get_change_message()


def test_a_selection_is_told_one_by_one_what_was_done_and_what_was_not(
    work: Clockwork, admin_client: Client
) -> None:
    rows = [hourly(work, name) for name in ("a", "b", "c")]
    pause_schedule("b")
    chosen = {"action": "pause_selected", "_selected_action": [each.pk for each in rows]}
    text = text_of(admin_client.post(list_of("schedule"), chosen))
    assert "2 schedules" in text
    assert "1 schedule is left as it is" in text
    rows[2].delete()
    response = admin_client.post(list_of("schedule"), chosen | YES)
    assert "Paused: 1. <bdi>a</bdi>" in said(response)
    assert "<bdi>b</bdi>: It was paused already" in said(response)
    assert [each.object_repr for each in LogEntry.objects.all()] == ["a"]


def test_a_schedule_that_goes_while_the_question_stands_is_told_of(
    work: Clockwork, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = hourly(work)
    kept = Schedule.objects.get()
    Schedule.objects.all().delete()
    for deed in ("pause", "resume", "fire", "make_up"):
        response = admin_client.post(url_of(each, deed), YES)
        assert response.status_code == 302
        assert "No such schedule." in said(response)
    # Gone between the look and the deed.
    from django_durable_jobs.admin.schedules import ScheduleAdmin

    monkeypatch.setattr(ScheduleAdmin, "get_object", lambda *args: kept)
    for deed in ("pause", "fire"):
        response = admin_client.post(url_of(each, deed), YES)
        assert "Not done:" in said(response)
    assert not LogEntry.objects.exists()


def test_one_that_this_process_does_not_declare_can_be_paused_but_not_fired(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    declaration = schedules.get("s")
    assert declaration is not None
    schedules.remove(declaration)
    text = text_of(admin_client.get(page_of(each)))
    assert "This process does not declare it" in text
    assert url_of(each, "pause") in text
    assert url_of(each, "fire") not in text
    assert b"Yes, " not in admin_client.post(url_of(each, "fire")).content
    assert "is not declared in this process" in said(admin_client.post(url_of(each, "fire"), YES))
    Schedule.objects.update(retired_at=at(12))
    assert "None: it is gone from the code." in text_of(admin_client.get(page_of(each)))
    assert "gone from the code" in text_of(admin_client.get(list_of("schedule")))


# Making up


def test_a_skipped_tick_is_made_up_for_from_its_row_once(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    work.go(at(13))
    work.go(at(14))
    assert fired("s", "skipped") == [at(14)]
    end(jobs("s")[0])
    text = text_of(admin_client.get(page_of(each)))
    assert "the run before it was not over" in text
    tick = {"tick": at(14).isoformat()}
    assert tick["tick"] in text
    assert "2026-05-04 14:00:00 UTC" in text_of(admin_client.post(url_of(each, "make_up"), tick))
    response = admin_client.post(url_of(each, "make_up"), YES | tick)
    assert "Made up for: 1." in said(response)
    assert fired("s", "manual") == [at(14)]
    end(jobs("s")[1])
    assert "was not missed" in said(admin_client.post(url_of(each, "make_up"), YES | tick))
    assert at(14).isoformat() in LogEntry.objects.get().get_change_message()


def test_of_a_stretch_the_page_offers_the_ticks_that_were_not_made_up_for_newest_first(
    work: Clockwork, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = hourly(work)
    pause_schedule("s")
    work.walk(at(16, 30), step=600)
    stretch = TickGap.objects.get()
    admin_client.post(url_of(each, "make_up"), YES | {"tick": at(14).isoformat()})
    end(jobs("s")[0])
    response = admin_client.post(url_of(each, "make_up"), {"gap": stretch.pk})
    offered = [tick["value"] for tick in response.context["ticks"]]
    assert offered == [at(hour).isoformat() for hour in (16, 15, 13)]
    monkeypatch.setattr(ledger, "MOST_TICKS", 2)
    text = text_of(admin_client.post(url_of(each, "make_up"), {"gap": stretch.pk}))
    assert "durablejobs fire --tick" in text


@pytest.mark.parametrize(
    "sent",
    [
        {"gap": "nonsense"}, {"gap": "9" * 30}, {"gap": "77"}, {"tick": "yesterday"}, {},
        {"tick": "2026-05-04T13:00:00"},
    ],
)  # fmt: skip
def test_a_tick_that_is_none_is_told_of(
    sent: dict[str, str], work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    response = admin_client.post(url_of(each, "make_up"), sent)
    assert response.status_code == 302
    assert "There is no such missed tick" in said(response)
    assert "No tick was chosen" in said(admin_client.post(url_of(each, "make_up"), YES | sent))
    never = YES | {"tick": at(3).isoformat()}
    assert "missed no tick" in said(admin_client.post(url_of(each, "make_up"), never))
    assert not Job.objects.exists()


# Looking


def test_the_page_tells_the_next_ten_fires_with_marks_and_slips(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work, cron="30 2 31 * *", timezone="Europe/Vienna")
    text = text_of(admin_client.get(page_of(each)))
    assert text.count("2026-") > 3
    assert "2026-05-31 02:30:00" in text
    assert "2026-05-31 00:30:00" in text
    assert "day 31: skips" in text
    work.clock.move_to(at(12, day=30).replace(month=3, year=2026, day=27))
    hourly(work, "spring", cron="30 2 * * *", timezone="Europe/Vienna")
    assert "the clocks go forward" in text_of(admin_client.get(page_of(row("spring"))))


def test_the_page_tells_that_the_code_here_is_another_than_the_workers(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    Schedule.objects.update(rule="0" * 64)
    assert "in another way than the workers" in text_of(admin_client.get(page_of(each)))


def test_the_ledger_says_why_it_did_not_run_at_two(work: Clockwork, admin_client: Client) -> None:
    each = hourly(work, timezone="Europe/Vienna")
    work.go(at(13))
    pause_schedule("s")
    work.walk(at(15, 30), step=600)
    text = text_of(admin_client.get(page_of(each)))
    assert missed("s") == [(at(14), at(15), 2, "paused")]
    assert "2 ticks: the schedule was paused" in text
    assert text.index("2 ticks") < text.index(">fired</span>")
    # Asked on the schedule's clock: at four in Vienna it is two in UTC.
    answer = admin_client.get(page_of(each), {"at": "2026-05-04T15:30"})
    assert [line.told for line in answer.context["lines"]] == [""]
    answer = admin_client.get(page_of(each), {"at": "2026-05-04T16:00"})
    assert answer.context["lines"][0].told == "2 ticks: the schedule was paused"
    answer = admin_client.get(page_of(each), {"at": "2026-05-04T01:00"})
    assert "Nothing is kept from before that time." in text_of(answer)


@pytest.mark.parametrize("value", ["nonsense", "2026-99-99T00:00", "'; --", "2026-05-04T16:00\0"])
def test_a_time_that_is_none_shows_the_newest(
    value: str, work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    work.go(at(13))
    for name in ("at", "until"):
        assert len(admin_client.get(page_of(each), {name: value}).context["lines"]) == 1


def test_a_long_ledger_is_leafed_through(
    work: Clockwork, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = hourly(work)
    for hour in range(8):
        claim(work, scheduled_at=at(hour))
    gap(work, first=at(8), last=at(9), count=2)
    monkeypatch.setattr(ledger, "MOST_LINES", 4)
    first = admin_client.get(page_of(each))
    assert len(first.context["lines"]) == 4
    older = first.context["older"]
    assert older == at(4)
    second = admin_client.get(page_of(each), {"until": older.isoformat()})
    assert len(second.context["lines"]) == 4
    third = admin_client.get(page_of(each), {"until": second.context["older"].isoformat()})
    assert [len(third.context["lines"]), third.context["older"]] == [1, None]


def test_a_tick_whose_job_was_deleted_says_so_everywhere(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    work.go(at(13))
    job = jobs("s")[0]
    link = reverse("admin:django_durable_jobs_job_change", args=[job.pk])
    tick = TickClaim.objects.get()
    pages = (page_of(each), list_of("tickclaim"), page_of(tick))
    for url in pages:
        assert link in text_of(admin_client.get(url))
    Job.objects.filter(pk=job.pk).delete()
    TickClaim.objects.update(job=job.pk)  # as raw SQL leaves it
    for url in pages:
        text = text_of(admin_client.get(url))
        assert ">deleted</span>" in text
    TickClaim.objects.update(job=None)
    for url in pages[1:]:
        assert ">deleted</span>" in text_of(admin_client.get(url))


def test_errors_hide_what_looks_like_a_secret(work: Clockwork, admin_client: Client) -> None:
    each = hourly(work)
    Schedule.objects.update(last_error="no: password=hunter2 " + "x" * 4_000)
    assert "hunter2" in text_of(admin_client.get(page_of(each)))
    assert "hunter2" not in text_of(admin_client.get(list_of("schedule")))
    client = client_with("view_schedule")
    for url in (page_of(each), list_of("schedule")):
        text = text_of(client.get(url))
        assert "hunter2" not in text
        assert "password=" in text


# Lists


def test_filters_and_search_find_schedules(work: Clockwork, admin_client: Client) -> None:
    names = ("failing", "gone", "missing", "paused", "plain", "running")
    for name in names:
        hourly(work, name)
    update = Schedule.objects.filter
    update(name="failing").update(last_error="no")
    update(name="gone").update(retired_at=at(12), last_error="no")
    update(name="missing").update(misses=3)
    pause_schedule("paused")
    update(name="running").update(running=True)

    def found(**query: str) -> list[str]:
        return [each.name for each in rows_of(admin_client.get(list_of("schedule"), query))]

    assert found() == list(names)
    for status in ("failing", "gone", "missing", "paused", "running"):
        assert found(status=status) == [status]
    assert found(q=" plain ") == ["plain"]
    assert found(q="plai") == found(q="PLAIN") == found(namespace="elsewhere") == []
    assert found(kind__exact="cron") == list(names)


@pytest.mark.parametrize("model", ["schedule", "tickclaim", "tickgap"])
def test_a_list_takes_the_same_number_of_queries_however_long_it_is(
    model: str, work: Clockwork, admin_client: Client
) -> None:
    def add(n: int) -> None:
        for _ in range(n):
            number = TickGap.objects.count()
            hourly(work, f"s{number}")
            claim(work, name=f"s{number}", job_id=uuid4())
            gap(work, name=f"s{number}")

    def queries() -> int:
        with CaptureQueriesContext(connection) as context:
            text_of(admin_client.get(list_of(model)))
        return len(context)

    add(1)
    few = queries()
    add(12)
    assert queries() == few <= 9


def test_ticks_are_counted_only_so_far(
    work: Clockwork, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MOST_COUNTED", 3)
    monkeypatch.setattr(base.ReadOnlyAdminMixin, "most_counted", 3)
    for hour in range(5):
        claim(work, scheduled_at=at(hour))
    assert "There are 3 or more" in text_of(admin_client.get(list_of("tickclaim")))


def test_ticks_are_found_by_schedule_job_and_whether_their_run_is_over(
    work: Clockwork, admin_client: Client
) -> None:
    one, other = hourly(work, "one"), hourly(work, "other")
    job = uuid4()
    late = claim(work, name="one", scheduled_at=at(10), open=True)
    early = claim(work, name="one", scheduled_at=at(9), job_id=job)
    strange = claim(work, name="other", scheduled_at=at(9))
    stretch = gap(work, name="one")

    def found(model: str = "tickclaim", **query: Any) -> list[Any]:
        return rows_of(admin_client.get(list_of(model), query))

    assert found() == [strange, early, late]
    assert found(schedule=one.pk) == [late, early]
    assert found(schedule=other.pk, open__exact="1") == []
    assert found(open__exact="1") == [late]
    assert found(q="other") == [strange]
    assert found(q=str(job)) == [early]
    assert found(schedule="nonsense") == found(schedule="9" * 30) == found(q="othe") == []
    assert found("tickgap", schedule=one.pk) == found("tickgap", q="one") == [stretch]
    for lookup in ("job__payload__x", "outcome", "reason__regex"):
        assert admin_client.get(list_of("tickclaim"), {lookup: "1"}).status_code == 400


def test_an_address_that_is_none_is_told_of(work: Clockwork, admin_client: Client) -> None:
    for model in ("schedule", "tickclaim", "tickgap"):
        for key in ("nonsense", "9" * 30, "0"):
            url = reverse(f"admin:django_durable_jobs_{model}_change", args=[key])
            assert admin_client.get(url).status_code == 302
    chosen = {"action": "pause_selected", "_selected_action": ["x", "9" * 30]} | YES
    assert "No such schedule." in said(admin_client.post(list_of("schedule"), chosen))


# Hostile content


def test_hostile_text_stays_text_on_every_page(work: Clockwork, admin_client: Client) -> None:
    def make(text: str) -> list[str]:
        name = text[:190]
        schedule(name, run=lambda: None, cron="0 * * * *", timezone="UTC")
        work.start()
        each = row(name)
        Schedule.objects.filter(pk=each.pk).update(
            when=text, timezone=text[:64], last_error=text, paused_at=at(12),
            paused_by=text[:150], paused_reason=text, retired_at=None, last_job=uuid4(),
        )  # fmt: skip
        tick = claim(work, name=name, outcome="skipped", reason=text[:64], job_id=uuid4())
        stretch = gap(work, name=name, reason=text[:64])
        gets = [
            *map(list_of, ("schedule", "tickclaim", "tickgap")),
            page_of(each), page_of(tick), page_of(stretch),
        ]  # fmt: skip
        found = [text_of(admin_client.get(url)) for url in gets]
        found.append(text_of(admin_client.get(page_of(each), {"at": text})))
        found += [text_of(admin_client.post(url_of(each, deed))) for deed in ("resume", "fire")]
        admin_client.post(url_of(each, "resume"), YES)
        admin_client.post(url_of(each, "pause"), YES | {"reason": text})
        admin_client.post(url_of(each, "pause"), YES)
        found.append(text_of(admin_client.get(page_of(each))))  # with the messages
        found.append(text_of(admin_client.get(url_of(each, "history"))))
        for model in (Schedule, TickClaim, TickGap, LogEntry):
            model.objects.all().delete()
        declaration = schedules.get(name)
        assert declaration is not None
        schedules.remove(declaration)
        return found

    plain = [Elements(text) for text in make("harmless")]
    for hostile in (HOSTILE, RIGHT_TO_LEFT + HOSTILE, "\u2028" + HOSTILE):
        for one, other in zip(plain, map(Elements, make(hostile)), strict=True):
            assert other.tags == one.tags
            assert other.names == one.names


def test_marks_of_direction_end_with_the_words_they_stand_in(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work, RIGHT_TO_LEFT)
    pause_schedule(RIGHT_TO_LEFT, by=RIGHT_TO_LEFT, reason=RIGHT_TO_LEFT)
    for url in (list_of("schedule"), page_of(each)):
        assert f"<bdi>{RIGHT_TO_LEFT}</bdi>" in text_of(admin_client.get(url))
    assert f"<bdi>{RIGHT_TO_LEFT}</bdi>" in text_of(admin_client.post(url_of(each, "resume")))
    assert f"<bdi>{RIGHT_TO_LEFT}</bdi>" in said(admin_client.post(url_of(each, "resume"), YES))


def test_pages_have_no_script_or_style_of_their_own_inside(
    work: Clockwork, admin_client: Client
) -> None:
    import re

    each = hourly(work)
    for text in (
        text_of(admin_client.get(page_of(each))),
        text_of(admin_client.get(list_of("schedule"))),
        text_of(admin_client.post(url_of(each, "fire"))),
    ):
        assert not re.search(r"<style|\sstyle=|\son\w+=", text)
        assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", text))


def test_a_deed_in_a_time_of_its_own_does_not_shift_what_comes(
    work: Clockwork, admin_client: Client
) -> None:
    each = hourly(work)
    admin_client.post(url_of(each, "fire"), YES)
    assert row("s").next_fire == each.next_fire
    assert row("s").fires == 1
    work.clock.advance(timedelta(minutes=1).total_seconds())
    assert str(row("s").last_job_id) in text_of(admin_client.get(page_of(each)))
