"""Cancelling and requeueing jobs in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from django_durable_jobs.models import Job
from tests.doors.test_admin import VIEW, client_with, list_of, page_of, text_of
from tests.factories import make_job

pytestmark = pytest.mark.django_db

YES = {"confirmed": "yes"}


def url_of(job: Job, deed: str) -> str:
    return reverse(f"admin:django_durable_jobs_job_{deed}", args=[job.pk])


def state_of(job: Job) -> str:
    return Job.objects.values_list("state", flat=True).get(pk=job.pk)


def said(response: Any) -> str:
    return " ".join(map(str, get_messages(response.wsgi_request)))


DEEDS = [("cancel", "queued", "cancelled"), ("requeue", "interrupted", "queued")]


@pytest.mark.parametrize(("deed", "before", "after"), DEEDS)
def test_it_takes_its_own_permission_and_that_to_view(deed: str, before: str, after: str) -> None:
    job = make_job(before)
    url = url_of(job, deed)
    button = f'action="{url}"'
    assert Client().post(url, YES).status_code == 302
    other = "requeue_job" if deed == "cancel" else "cancel_job"
    for codenames in ((), VIEW, (*VIEW, "view_payload"), (*VIEW, other), (f"{deed}_job",)):
        client = client_with(*codenames)
        assert client.post(url).status_code == client.post(url, YES).status_code == 403
        action = {"action": f"{deed}_selected", "_selected_action": job.pk}
        client.post(list_of("job"), action | YES)
        if "view_job" in codenames:
            assert button not in text_of(client.get(page_of(job)))
        assert state_of(job) == before
    client = client_with(*VIEW, f"{deed}_job")
    assert button in text_of(client.get(page_of(job)))
    assert client.post(url, YES).status_code == 302
    assert state_of(job) == after
    assert LogEntry.objects.get().object_id == str(job.pk)
    assert url not in text_of(client.get(page_of(job)))


@pytest.mark.parametrize(("deed", "before", "after"), DEEDS)
def test_a_get_changes_nothing_and_a_first_post_only_asks(
    deed: str, before: str, after: str, admin_client: Client
) -> None:
    job = make_job(before)
    url = url_of(job, deed)
    for method in (admin_client.get, admin_client.head):
        assert method(url, YES).status_code == 405
    assert b"Yes, " in admin_client.post(url).content
    assert state_of(job) == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(("deed", "before", "after"), DEEDS)
def test_a_post_needs_the_token(deed: str, before: str, after: str, admin_user: Any) -> None:
    job = make_job(before)
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post(url_of(job, deed), YES).status_code == 403
    page = client.get(page_of(job))
    token = {"csrfmiddlewaretoken": page.context["csrf_token"]}
    assert client.post(url_of(job, deed), YES | token).status_code == 302
    assert state_of(job) == after


def test_a_reason_is_kept_with_the_job_and_in_its_history(admin_client: Client) -> None:
    job = make_job()
    reason = "<b>moved</b> " + "x" * 2_000
    admin_client.post(url_of(job, "cancel"), YES | {"reason": reason})
    assert Job.objects.get().cancelled_reason == reason[:1_024]
    history = reverse("admin:django_durable_jobs_job_history", args=[job.pk])
    text = text_of(admin_client.get(history))
    assert "Cancelled. Reason: &lt;b&gt;moved" in text
    assert "&lt;b&gt;moved" in text_of(admin_client.get(page_of(job)))


@pytest.mark.parametrize("state", ["claimed", "running", "completed", "failed", "interrupted"])
def test_what_is_not_queued_is_not_cancelled_and_says_so(state: str, admin_client: Client) -> None:
    job = make_job(state)
    assert b"Yes, " not in admin_client.post(url_of(job, "cancel")).content
    response = admin_client.post(url_of(job, "cancel"), YES)
    assert "Only queued jobs can be cancelled" in said(response)
    assert state_of(job) == state
    assert not LogEntry.objects.exists()


def test_a_double_click_cancels_once_and_tells_the_second(admin_client: Client) -> None:
    job = make_job()
    admin_client.post(url_of(job, "cancel"), YES)
    assert "is cancelled" in said(admin_client.post(url_of(job, "cancel"), YES))
    assert LogEntry.objects.count() == 1


def test_a_job_that_is_gone_is_told_of(admin_client: Client) -> None:
    job = make_job()
    Job.objects.all().delete()
    response = admin_client.post(url_of(job, "cancel"), YES)
    assert response.status_code == 302
    assert "No such job." in said(response)


def test_a_selection_is_asked_for_then_done_as_far_as_it_can_be(admin_client: Client) -> None:
    jobs = [make_job(), make_job(owner_id="acme"), make_job("running")]
    chosen = {"action": "cancel_selected", "_selected_action": [job.pk for job in jobs]}
    text = text_of(admin_client.post(list_of("job"), {**chosen, "index": 0}))
    assert "2 jobs" in text
    assert "1 job is left as it is" in text
    assert [state_of(job) for job in jobs] == ["queued", "queued", "running"]
    response = admin_client.post(list_of("job"), {**chosen, **YES, "reason": "moved"})
    assert response.status_code == 302
    assert [state_of(job) for job in jobs] == ["cancelled", "cancelled", "running"]
    assert "Cancelled: 2." in said(response)
    assert "is running" in said(response)
    assert LogEntry.objects.count() == 2


def test_requeue_gives_one_more_attempt_and_reports_a_key_that_is_taken(
    admin_client: Client,
) -> None:
    failed = make_job("failed")
    old = make_job("failed", key_scope="live", idempotency_key="k")
    make_job("queued", idempotency_key="k")
    chosen = {"action": "requeue_selected", "_selected_action": [failed.pk, old.pk]}
    response = admin_client.post(list_of("job"), {**chosen, **YES})
    assert (state_of(failed), state_of(old)) == ("queued", "failed")
    assert Job.objects.get(pk=failed.pk).max_attempts == 2
    assert "Requeued: 1." in said(response)
    assert "belongs to another job" in said(response)


def test_a_selection_reaches_only_what_the_list_shows(admin_client: Client) -> None:
    shown, foreign = make_job(queue="a"), make_job(queue="b")
    for chosen in ([shown.pk, foreign.pk], ["nonsense", foreign.pk]):
        action = {"action": "cancel_selected", "_selected_action": chosen, "select_across": "1"}
        response = admin_client.post(list_of("job") + "?queue=a", action | YES)
        assert response.status_code == 302
    assert (state_of(shown), state_of(foreign)) == ("cancelled", "queued")
