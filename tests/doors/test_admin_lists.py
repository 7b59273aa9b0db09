"""Lists of jobs and executions that are too long to be looked through in one request."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_durable_jobs.admin import JobAdmin, base, stretches
from django_durable_jobs.models import Execution, Job, Namespace
from tests.doors.test_admin import list_of, rows_of, text_of
from tests.factories import make_execution, make_job, make_worker, now

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ten rows as many as fifty thousand."""
    monkeypatch.setattr(stretches, "LOOKED_THROUGH", 10)
    monkeypatch.setattr(stretches, "FEW", 6)
    monkeypatch.setattr(base, "MOST_COUNTED", 8)
    monkeypatch.setattr(base.ReadOnlyAdminMixin, "most_counted", 8)
    Namespace.objects.create(name="default")


def jobs_of(client: Client, asked: str) -> list[Any]:
    return [row.pk for row in rows_of(client.get(list_of("job") + asked))]


def walked(client: Client, model: str, asked: str) -> list[list[Any]]:
    """Return what each stretch shows, following the link to what lies before it."""
    stretches_, address = [], list_of(model) + asked
    for _round in range(20):
        response = client.get(address)
        stretches_.append([row.pk for row in rows_of(response)])
        further = response.context["cl"].further_url
        if not further:
            return stretches_
        assert "Look further back" in text_of(response)
        address = list_of(model) + further
    raise AssertionError("it never ends")


def test_a_rare_type_is_looked_for_stretch_by_stretch_and_found(admin_client: Client) -> None:
    rare = [make_job("completed", type="rare") for _ in range(2)]
    for _ in range(25):
        make_job("completed")
    found = walked(admin_client, "job", "?type=rare")
    assert found == [[], [], [rare[1].pk, rare[0].pk]]
    text = text_of(admin_client.get(list_of("job") + "?type=rare"))
    assert "10 jobs were looked through, back to" in " ".join(text.split())


@pytest.mark.parametrize("asked", ["", "?state__exact=completed", "?queue=default"])
def test_every_job_can_be_leafed_to_once(asked: str, admin_client: Client) -> None:
    made = [make_job("completed").pk for _ in range(27)]
    found = walked(admin_client, "job", asked)
    shown = [pk for each in found for pk in each]
    # The page of a stretch of which more match than are counted ends with the last counted.
    assert sorted(set(shown)) == sorted(made)
    assert all(each == sorted(each, reverse=True) for each in found)


@pytest.mark.parametrize("state", ["queued", "claimed", "running", "failed", "interrupted"])
def test_a_state_that_few_are_in_is_found_however_old(state: str, admin_client: Client) -> None:
    old = [make_job(state) for _ in range(3)]
    for _ in range(30):
        make_job("completed" if state == "queued" else "cancelled")
    response = admin_client.get(list_of("job") + f"?state__exact={state}")
    assert [row.pk for row in rows_of(response)] == [job.pk for job in reversed(old)]
    assert "Look further back" not in text_of(response)


def test_executions_are_looked_through_in_the_same_way(admin_client: Client) -> None:
    old = make_job("failed", worker=make_worker())
    other = make_job("failed", namespace="other")
    for _ in range(25):
        make_execution(make_job("completed", execution=False))
    assert [len(each) for each in walked(admin_client, "execution", "?state__exact=failed")] == [1]
    Namespace.objects.create(name="other")
    found = walked(admin_client, "execution", "?state__exact=failed")
    assert found == [[other.executions.get().pk, old.executions.get().pk]]
    everything = [pk for each in walked(admin_client, "execution", "") for pk in each]
    assert sorted(set(everything)) == sorted(Execution.objects.values_list("pk", flat=True))


def test_an_owner_of_long_ago_is_found(admin_client: Client) -> None:
    ran = make_job("completed", owner_id="early")
    waits = make_job("queued", owner_id="early", run_at=now() + timedelta(days=9))
    withdrawn = make_job("cancelled", owner_id="early")
    aimed = make_job("cancelled", target={"kind": "order", "id": "7"})
    for _ in range(30):
        make_job("cancelled")
    assert jobs_of(admin_client, "?q=early") == [waits.pk, ran.pk]
    assert jobs_of(admin_client, "?q=order:7") == [aimed.pk]
    assert jobs_of(admin_client, f"?q={withdrawn.pk}") == [withdrawn.pk]
    assert jobs_of(admin_client, f"?q={withdrawn.idempotency_key}") == [withdrawn.pk]
    shown = {pk for each in walked(admin_client, "job", "?q=early") for pk in each}
    assert shown == {ran.pk, waits.pk, withdrawn.pk}


def test_what_a_worker_left_interrupted_can_be_asked_for(admin_client: Client) -> None:
    worker = make_worker()
    theirs = [make_job("interrupted", worker=worker) for _ in range(3)]
    make_job("interrupted", worker=make_worker())
    again = make_job("interrupted", worker=worker)
    Job.objects.filter(pk=again.pk).update(state="failed", claim_id=again.pk)  # ran once more
    long_ago = make_job("interrupted", worker=worker, finished_at=now() - timedelta(days=3))
    Execution.objects.filter(job=theirs[0]).update(interruption_reason="scheduler_shutdown")
    for _ in range(20):
        make_job("completed")

    def found(asked: str) -> set[Any]:
        return set(jobs_of(admin_client, asked))

    ids = {job.pk for job in theirs}
    assert found(f"?interrupted_by={worker.pk}") == ids | {long_ago.pk}
    assert found(f"?interrupted_by={worker.pk}&interrupted_within=1h") == ids
    assert found("?interrupted_because=scheduler_shutdown") == {theirs[0].pk}
    assert found("?interrupted_because=nonsense") == set()
    assert found("?interrupted_within=nonsense") == found("?interrupted_by=nonsense") == set()


def test_nonsense_for_a_place_in_the_list_is_the_newest(admin_client: Client) -> None:
    job = make_job()
    for nonsense in ("x", "1", "'", "00000000-0000-0000-0000-00000000000g", "%00"):
        assert jobs_of(admin_client, f"?before={nonsense}") == [job.pk]
    assert jobs_of(admin_client, f"?before={job.pk}") == []


def test_a_filter_begins_anew_and_a_page_does_not(admin_client: Client) -> None:
    for _ in range(20):
        make_job("completed")
    at = Job.objects.order_by("-pk")[3].pk
    cl = admin_client.get(list_of("job") + f"?before={at}&type=test.job").context["cl"]
    assert f"before={at}" in cl.get_query_string({"p": 2})
    assert "before" not in cl.get_query_string({"type": "x"}) + cl.get_query_string(remove=["type"])


LISTS = [
    "", "?p=2", "?state__exact=queued", "?state__exact=failed", "?state__exact=completed",
    "?type=rare", "?queue=mail&namespace=other", "?q=early", "?q=order:7",
    "?interrupted_within=1d", "?interrupted_because=worker_lost&state__exact=interrupted",
]  # fmt: skip


@pytest.mark.parametrize("asked", LISTS)
def test_no_list_reads_more_for_more_rows(
    asked: str, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is counted, sorted or searched but within a bound."""
    monkeypatch.setattr(JobAdmin, "list_per_page", 4)

    def statements() -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(list_of("job") + asked).status_code == 200
        return [each["sql"] for each in queries.captured_queries]

    def fill() -> None:
        for state in ("completed", "failed", "queued", "interrupted"):
            for _ in range(12):
                make_job(state)

    fill()
    before = statements()
    fill()
    after = statements()
    assert len(before) == len(after) <= 18
    bounded = re.compile(r"LIMIT \d|\.[\"`]id[\"`] (>=|=) ")
    assert [sql for sql in after if Job._meta.db_table in sql and not bounded.search(sql)] == []


@pytest.mark.parametrize("model", ["job", "execution", "worker", "schedule", "tickclaim", "loop"])
def test_no_list_offers_to_show_all(model: str, admin_client: Client) -> None:
    for asked in ("?q=x", "?q=x&all=", ""):
        text = text_of(admin_client.get(list_of(model) + asked, follow=True))
        assert "Show all" not in text
