"""Resolving, stopping and running jobs now; all that a filter matches; twice at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_durable_jobs.admin import steering
from django_durable_jobs.claims import ClaimRequest, claim
from django_durable_jobs.db import transaction
from django_durable_jobs.loops.occurrences import TARGET
from django_durable_jobs.models import Execution, Job, QueueEntry
from tests.doors.test_admin import client_with, list_of, page_of, text_of
from tests.doors.test_admin_steering import YES, said, state_of, url_of
from tests.factories import assert_queue_is_sound, make_job, make_worker, now
from tests.racing import race

db = pytest.mark.django_db
racing = [pytest.mark.django_db(transaction=True), pytest.mark.races]

WHY = YES | {"reason": "the parcel arrived"}


def later(**values: Any) -> Job:
    return make_job(run_at=now() + timedelta(hours=3), **values)


MAKERS: dict[str, Callable[..., Job]] = {
    "cancel": make_job,
    "requeue": lambda **values: make_job("interrupted", **values),
    "resolve": lambda **values: make_job("interrupted", **values),
    "stop": lambda **values: make_job("running", **values),
    "run_now": later,
}


def was_done(deed: str, job: Job) -> bool:
    found = Job.objects.get(pk=job.pk)
    if deed == "stop":
        return found.stop_requested_at is not None
    if deed == "run_now":
        return found.run_at <= now() and QueueEntry.objects.filter(pk=job.pk, due=True).exists()
    return str(found.state) == {"cancel": "cancelled", "requeue": "queued"}.get(deed, "completed")


@db
@pytest.mark.parametrize("deed", MAKERS)
def test_it_is_offered_asked_for_done_logged_and_told(deed: str, admin_client: Client) -> None:
    job = MAKERS[deed]()
    assert f'action="{url_of(job, deed)}"' in text_of(admin_client.get(page_of(job)))
    question = text_of(admin_client.post(url_of(job, deed)))
    assert "Yes, " in question
    assert not was_done(deed, job)
    response = admin_client.post(url_of(job, deed), WHY)
    assert response.status_code == 302
    assert was_done(deed, job)
    assert ": 1." in said(response)
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.get_username()) == (str(job.pk), "admin")
    assert deed == "run_now" or "the parcel arrived" in entry.get_change_message()
    assert_queue_is_sound()


@db
@pytest.mark.parametrize("deed", MAKERS)
def test_a_second_click_does_nothing_and_says_so(deed: str, admin_client: Client) -> None:
    job = MAKERS[deed]()
    admin_client.post(url_of(job, deed), WHY)
    before = Job.objects.values().get(pk=job.pk)
    response = admin_client.post(url_of(job, deed), WHY)
    assert "Not done:" in said(response)
    assert Job.objects.values().get(pk=job.pk) == before
    assert LogEntry.objects.count() == 1


FITS = {
    "cancel": {"queued"}, "requeue": {"failed", "interrupted"}, "resolve": {"interrupted"},
    "stop": {"running"}, "run_now": set[str](),  # the queued one is due
}  # fmt: skip
STATES = ("queued", "running", "completed", "failed", "interrupted")
MISFITS = [(deed, state) for deed in FITS for state in STATES if state not in FITS[deed]]


@db
@pytest.mark.parametrize(("deed", "state"), MISFITS)
def test_what_it_does_not_suit_is_left_and_told_of(
    deed: str, state: str, admin_client: Client
) -> None:
    """The page was drawn before the job moved: what is posted may not fit any more."""
    job = make_job(state)
    before = Job.objects.values().get(pk=job.pk)
    assert f'action="{url_of(job, deed)}"' not in text_of(admin_client.get(page_of(job)))
    response = admin_client.post(url_of(job, deed), WHY)
    assert "Not done:" in said(response)
    assert str(job.pk) in said(response)
    assert Job.objects.values().get(pk=job.pk) == before
    assert not LogEntry.objects.exists()


@db
def test_resolving_takes_a_note_which_is_kept_with_who_said_it(admin_client: Client) -> None:
    job = make_job("interrupted")
    for reason in ("", "   "):
        response = admin_client.post(url_of(job, "resolve"), YES | {"reason": reason})
        assert "Nothing was done: say why" in said(response)
    assert state_of(job) == "interrupted"
    admin_client.post(url_of(job, "resolve"), WHY)
    execution = Execution.objects.get()
    assert (execution.resolved_by, execution.resolved_note) == ("admin", "the parcel arrived")
    assert "Resolved by admin: the parcel arrived" in text_of(admin_client.get(page_of(job)))


@db
def test_who_may_only_stop_cannot_cancel_by_it() -> None:
    job = make_job()
    client = client_with("view_job", "stop_job")
    assert "is not running: it is queued" in said(client.post(url_of(job, "stop"), YES))
    assert state_of(job) == "queued"


@db
def test_a_job_that_waits_for_its_retry_can_be_run_now(admin_client: Client) -> None:
    job = make_job(claimable_at=now() + timedelta(hours=1), held_reason="retry", held_since=now())
    admin_client.post(url_of(job, "run_now"), YES)
    assert was_done("run_now", job)
    assert_queue_is_sound()


@db
def test_an_occurrence_of_a_loop_is_left_to_the_loop(admin_client: Client) -> None:
    job = later(target={"kind": TARGET, "id": "1"})
    assert url_of(job, "run_now") not in text_of(admin_client.get(page_of(job)))
    assert "belongs to a loop" in said(admin_client.post(url_of(job, "run_now"), YES))
    assert Job.objects.get().run_at == job.run_at


@db
def test_what_ended_anew_since_the_question_is_not_requeued_once_more(
    admin_client: Client,
) -> None:
    """A double click on "requeue", where the job has run and failed between the two."""
    job = make_job("failed", finished_at=now() - timedelta(minutes=1))
    asked = admin_client.post(url_of(job, "requeue")).context["asked_at"]
    answer = YES | {"asked_at": asked}
    admin_client.post(url_of(job, "requeue"), answer)
    QueueEntry.objects.all().delete()
    Job.objects.update(state="failed", finished_at=now(), claim_id=uuid.uuid4())
    assert "has ended anew" in said(admin_client.post(url_of(job, "requeue"), answer))
    assert state_of(job) == "failed"


# All that a filter matches


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "MOST_AT_ONCE", 3)


def across(deed: str, **more: Any) -> dict[str, Any]:
    return {"action": f"{deed}_selected", "select_across": "1", **more}


def keys_in(response: Any) -> list[str]:
    return [str(row["pk"]) for row in response.context["rows"]]


@db
def test_all_that_a_worker_left_interrupted_is_requeued_in_batches(
    few_at_once: None, admin_client: Client
) -> None:
    worker = make_worker()
    theirs = [make_job("interrupted", worker=worker) for _ in range(7)]
    others = [make_job("interrupted", worker=make_worker()) for _ in range(2)]
    make_job("completed", worker=worker)
    link = text_of(admin_client.get(page_of(worker)))
    address = f"{list_of('job')}?interrupted_by={worker.pk}&amp;state__exact=interrupted"
    assert f'href="{address}"' in link
    address = address.replace("&amp;", "&")
    page = admin_client.get(address)
    assert page.context["cl"].result_count == 7
    first = [str(job.pk) for job in page.context["cl"].result_list][:1]
    response = admin_client.post(address, across("requeue", index=0, _selected_action=first))
    assert "the newest 3 of 7" in " ".join(text_of(response).split())
    sizes = []
    while response.status_code == 200:
        keys = keys_in(response)
        sizes.append(len(keys))
        answer = across("requeue", _selected_action=keys, **WHY)
        response = admin_client.post(address, answer)
    assert sizes == [3, 3, 1]
    assert {state_of(job) for job in theirs} == {"queued"}
    assert {state_of(job) for job in others} == {"interrupted"}
    assert LogEntry.objects.count() == 7
    assert_queue_is_sound()


@db
def test_what_is_refused_does_not_hold_up_the_batches_behind(
    few_at_once: None, admin_client: Client
) -> None:
    older = [make_job("failed") for _ in range(2)]
    for number in range(3):
        make_job("failed", key_scope="live", idempotency_key=f"k{number}")
        make_job("queued", idempotency_key=f"k{number}")
    address = list_of("job") + "?state__exact=failed"
    response = admin_client.post(address, across("requeue", index=0, _selected_action=["x"]))
    assert response.status_code == 302  # no key at all
    response = admin_client.post(address, across("requeue", index=0, _selected_action=older[0].pk))
    response = admin_client.post(
        address, across("requeue", _selected_action=keys_in(response), **YES)
    )
    assert "belongs to another job" in text_of(response)
    assert sorted(keys_in(response)) == sorted(str(job.pk) for job in older)
    admin_client.post(address, across("requeue", _selected_action=keys_in(response), **YES))
    assert {state_of(job) for job in older} == {"queued"}


@db
def test_a_batch_asked_for_twice_is_done_once_and_nothing_beyond_it(
    few_at_once: None, admin_client: Client
) -> None:
    jobs = [make_job() for _ in range(5)]
    response = admin_client.post(
        list_of("job"), across("cancel", index=0, _selected_action=jobs[0].pk)
    )
    answer = across("cancel", _selected_action=keys_in(response), **YES)
    admin_client.post(list_of("job"), answer)
    again = admin_client.post(list_of("job"), answer)
    assert [state_of(job) for job in jobs] == ["queued"] * 2 + ["cancelled"] * 3
    assert LogEntry.objects.count() == 3
    assert keys_in(again) == [str(job.pk) for job in reversed(jobs[:2])]


@db
def test_a_job_that_moved_meanwhile_is_reported_and_the_others_are_done(
    admin_client: Client,
) -> None:
    jobs = [make_job() for _ in range(3)]
    asked = admin_client.post(
        list_of("job"), across("cancel", index=0, _selected_action=jobs[0].pk)
    )
    request = ClaimRequest(
        namespace="default",
        worker=uuid.uuid4(),
        slots=1,
        types=frozenset({"test.job"}),
        lease=30.0,
    )
    with transaction("default") as own:
        (taken,) = claim(own, request).takings
    response = admin_client.post(
        list_of("job"), across("cancel", _selected_action=keys_in(asked), **YES)
    )
    assert "Cancelled: 2." in said(response)
    assert str(taken.job_id) in said(response)
    assert sorted(map(state_of, jobs))[:2] == ["cancelled", "cancelled"]


# Twice at once


def posts(user: Any, url: str, data: dict[str, Any]) -> Callable[[], Any]:
    client = Client()
    client.force_login(user)

    def post() -> Any:
        return said(client.post(url, data))

    return post


@pytest.mark.parametrize("deed", MAKERS)
class TestTwiceAtOnce:
    pytestmark = racing

    def test_two_equal_answers_do_it_once(self, deed: str) -> None:
        users = [User.objects.create_superuser(name) for name in ("one", "two")]
        for _round in range(4):
            LogEntry.objects.all().delete()
            job = MAKERS[deed]()
            url = url_of(job, deed)
            results = race(*[posts(user, url, WHY) for user in users])
            assert all(isinstance(result, str) for result in results), results
            assert sorted("Not done:" in result for result in results) == [False, True], results
            assert LogEntry.objects.count() == 1
            assert was_done(deed, job)
        assert_queue_is_sound()


class TestDifferentAnswersAtOnce:
    pytestmark = racing

    @pytest.mark.parametrize(("one", "other"), [("requeue", "resolve"), ("cancel", "run_now")])
    def test_either_stands_and_the_other_is_told(self, one: str, other: str) -> None:
        user = User.objects.create_superuser("one")
        for _round in range(4):
            LogEntry.objects.all().delete()
            job = MAKERS[other]()
            runners = [posts(user, url_of(job, deed), WHY) for deed in (one, other)]
            results = race(*runners)
            assert all(isinstance(result, str) for result in results), results
            done = [deed for deed in (one, other) if was_done(deed, job)]
            assert done, results
            assert_queue_is_sound()


def test_a_selection_reaches_further_only_where_it_says_so(
    db: None, few_at_once: None, admin_client: Client
) -> None:
    jobs = [make_job("failed") for _ in range(5)]
    chosen = {"action": "requeue_selected", "_selected_action": [jobs[4].pk]}
    assert admin_client.post(list_of("job"), chosen | YES).status_code == 302
    assert [state_of(job) for job in jobs].count("queued") == 1
