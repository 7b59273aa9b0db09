"""Looking at jobs, executions and workers in the admin."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_durable_jobs.admin import base, shown
from django_durable_jobs.models import Execution, Job, Worker
from tests.factories import make_execution, make_job, make_worker, now, spoil

pytestmark = pytest.mark.django_db

SECRET = {"card": {"api_token": "s3cr3t-1"}, "list": [{"Password": "s3cr3t-2"}], "plain": "open-1"}


def client_with(*codenames: str) -> Client:
    user = User.objects.create_user(f"u{User.objects.count()}", is_staff=True)
    found = Permission.objects.filter(
        content_type__app_label="django_durable_jobs", codename__in=codenames
    )
    assert len(found) == len(codenames)
    user.user_permissions.set(found)
    client = Client()
    client.force_login(user)
    return client


VIEW = ("view_job", "view_execution", "view_worker")
ALL = (*VIEW, "view_payload", "view_secrets", "cancel_job", "requeue_job")


def page_of(row: Any) -> str:
    return reverse(f"admin:django_durable_jobs_{row._meta.model_name}_change", args=[row.pk])


def list_of(model: str) -> str:
    return reverse(f"admin:django_durable_jobs_{model}_changelist")


def text_of(response: Any) -> str:
    assert response.status_code == 200
    return str(response.content.decode())


def rows_of(response: Any) -> list[Any]:
    assert response.status_code == 200
    return list(response.context["cl"].result_list)


@pytest.fixture
def told() -> tuple[Job, Execution]:
    """Return a failed job with something to hide in every column that can hold it."""
    job = make_job("failed", payload=SECRET, execution=False)
    execution = make_execution(
        job,
        error="no: api_token=s3cr3t-3 at https://me:s3cr3t-4@example.org/",
        error_code="boom",
        traceback="Traceback-1: password='s3cr3t-5'",
        metadata={"token": "s3cr3t-6", "plain": "open-2"},
        receipt={"secret": "s3cr3t-7", "plain": "open-3"},
        result={"cookie": "s3cr3t-8", "plain": "open-4"},
    )
    return job, execution


# Who may see what


MAKERS: dict[str, Callable[[], Any]] = {
    "job": make_job,
    "execution": lambda: make_execution(make_job("running", execution=False)),
    "worker": make_worker,
}


@pytest.mark.parametrize("model", ["job", "execution", "worker"])
def test_pages_ask_for_a_login_and_for_the_permission_to_view(model: str) -> None:
    row = MAKERS[model]()
    for url in (list_of(model), page_of(row)):
        assert Client().get(url).status_code == 302
        assert client_with().get(url).status_code == 403
        assert client_with(f"view_{model}").get(url).status_code == 200


@pytest.mark.parametrize("model", ["job", "execution", "worker"])
def test_nobody_can_add_change_or_delete(model: str, admin_client: Client) -> None:
    row = MAKERS[model]()
    before = type(row).objects.values().get(pk=row.pk)
    everything = {field.attname: "1" for field in row._meta.fields}
    assert admin_client.get(list_of(model) + "add/").status_code == 403
    assert admin_client.post(page_of(row), everything).status_code == 403
    delete = reverse(f"admin:django_durable_jobs_{model}_delete", args=[row.pk])
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
    admin_client.post(
        list_of(model), {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"}
    )
    assert type(row).objects.values().get(pk=row.pk) == before


def test_without_view_payload_nothing_that_a_job_carries_is_shown(
    told: tuple[Job, Execution],
) -> None:
    client = client_with(*VIEW)
    for row in told:
        text = text_of(client.get(page_of(row)))
        assert not re.search(r"open-\d|s3cr3t|Traceback-1", text)
        assert "permission to see payloads" in text
        assert "boom" in text


def test_with_view_payload_everything_is_shown_but_the_values_of_masked_keys(
    told: tuple[Job, Execution],
) -> None:
    client = client_with(*VIEW, "view_payload")
    job, execution = (text_of(client.get(page_of(row))) for row in told)
    assert {f"open-{n}" for n in (1, 2, 3, 4)} <= set(re.findall(r"open-\d", job))
    assert {f"open-{n}" for n in (2, 3, 4)} <= set(re.findall(r"open-\d", execution))
    for text in (job, execution):
        assert "s3cr3t" not in text
        assert "Traceback-1" in text
        assert shown.HIDDEN in text


def test_view_secrets_shows_what_is_masked_but_only_together_with_view_payload(
    told: tuple[Job, Execution],
) -> None:
    both = client_with(*VIEW, "view_payload", "view_secrets")
    assert set(re.findall(r"s3cr3t-\d", text_of(both.get(page_of(told[0]))))) == {
        f"s3cr3t-{n}" for n in range(1, 9)
    }
    alone = client_with(*VIEW, "view_secrets")
    assert "s3cr3t" not in text_of(alone.get(page_of(told[0])))


def test_names_to_mask_are_a_setting(settings: Any, told: tuple[Job, Execution]) -> None:
    settings.DURABLE_JOBS = {"MASK": ["plain"]}
    text = text_of(client_with(*VIEW, "view_payload").get(page_of(told[0])))
    assert "open-1" not in text
    assert "s3cr3t-1" in text


@pytest.mark.parametrize(
    "lookup", ["payload__plain", "payload__card__api_token__startswith", "idempotency_key__regex"]
)
def test_what_is_hidden_cannot_be_probed_by_the_address(
    lookup: str, told: tuple[Job, Execution]
) -> None:
    client = client_with(*VIEW)
    assert client.get(list_of("job"), {lookup: "s"}).status_code == 400


# Lists


def test_the_list_shows_jobs_newest_first_with_their_state_in_words(admin_client: Client) -> None:
    first, second = make_job("failed", type="a.b"), make_job("queued", owner_id="acme")
    response = admin_client.get(list_of("job"))
    assert rows_of(response) == [second, first]
    text = text_of(response)
    assert ">failed</span>" in text
    assert ">queued</span>" in text
    assert str(first.pk)[-8:] in text
    assert "acme" in text


@pytest.mark.parametrize("model", ["job", "execution", "worker"])
def test_a_list_takes_the_same_number_of_queries_however_long_it_is(
    model: str, admin_client: Client
) -> None:
    def add(n: int) -> None:
        for _ in range(n):
            make_execution(make_job("failed", execution=False))

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as context:
            text_of(admin_client.get(list_of(model)))
        return len(context)

    add(1)
    few = queries()
    add(12)
    assert queries() == few <= 8


@pytest.mark.parametrize("model", ["job", "execution", "worker"])
def test_lists_leave_json_and_tracebacks_in_the_database(
    model: str, admin_client: Client, told: tuple[Job, Execution]
) -> None:
    with CaptureQueriesContext(connection) as context:
        text_of(admin_client.get(list_of(model)))
    table = f"django_durable_jobs_{model}"
    listing = [q["sql"] for q in context if f"FROM {connection.ops.quote_name(table)}" in q["sql"]]
    assert listing
    for sql in listing:
        for column in ("payload", "target", "meta", "metadata", "receipt", "result", "traceback",
                       "types", "queues"):  # fmt: skip
            assert connection.ops.quote_name(column) not in sql


def test_a_long_list_is_counted_only_so_far(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MOST_COUNTED", 3)
    monkeypatch.setattr(base.ReadOnlyAdminMixin, "most_counted", 3)
    for _ in range(5):
        make_job()
    text = text_of(admin_client.get(list_of("job")))
    assert "There are 3 or more" in text


def test_search_finds_by_exact_id_key_owner_and_target(admin_client: Client) -> None:
    job = make_job(
        owner_id="acme", idempotency_key="invoice-7", target={"kind": "invoice", "id": "7"}
    )
    settled = make_job("completed", key_scope="live", idempotency_key="freed")
    make_job(owner_id="acme-2", idempotency_key="invoice-77")

    def found(term: str) -> list[Any]:
        return rows_of(admin_client.get(list_of("job"), {"q": term}))

    for term in (str(job.pk), job.pk.hex, "invoice-7", " acme ", "7", "invoice:7"):
        assert found(term) == [job], term
    assert found("freed") == [settled]
    assert found("acm") == found("invoice:77") == found("ACME") == []


def test_filters_narrow_the_list_and_ask_the_database_for_no_names(admin_client: Client) -> None:
    failed, other = make_job("failed"), make_job("queued", queue="mail", type="other.type")
    for query, rows in (
        ({"state__exact": "failed"}, [failed]),
        ({"queue": "mail"}, [other]),
        ({"type": "other.type"}, [other]),
        ({"namespace": "elsewhere"}, []),
    ):
        with CaptureQueriesContext(connection) as context:
            assert rows_of(admin_client.get(list_of("job"), query)) == rows
        assert not any("DISTINCT" in q["sql"] for q in context)


def test_an_execution_whose_worker_and_job_are_gone_is_still_listed(admin_client: Client) -> None:
    job = make_job("failed", execution=False)
    execution = make_execution(job)
    Worker.objects.all().delete()
    assert rows_of(admin_client.get(list_of("execution"))) == [execution]
    text_of(admin_client.get(page_of(execution)))
    text_of(admin_client.get(page_of(job)))


def test_executions_are_found_by_job_and_number(admin_client: Client) -> None:
    execution = make_execution(make_job("failed", execution=False))
    make_execution(make_job("failed", execution=False))
    for term in (str(execution.job_id), str(execution.pk)):
        assert rows_of(admin_client.get(list_of("execution"), {"q": term})) == [execution]
    assert rows_of(admin_client.get(list_of("execution"), {"q": "9" * 30})) == []


# Pages


def test_a_job_that_is_not_there_is_told_of(admin_client: Client) -> None:
    for id in ("nonsense", "00000000-0000-0000-0000-000000000000"):
        url = reverse("admin:django_durable_jobs_job_change", args=[id])
        assert admin_client.get(url).status_code == 302


def test_a_page_takes_the_same_number_of_queries_however_many_attempts(
    admin_client: Client,
) -> None:
    job = make_job("failed")

    def queries() -> int:
        with CaptureQueriesContext(connection) as context:
            text_of(admin_client.get(page_of(job)))
        return len(context)

    queries()  # the first page of a process asks for content types too
    few = queries()
    for _ in range(5):
        make_execution(job, "released")
    assert queries() == few <= 8


def test_a_silent_worker_is_not_called_running(admin_client: Client) -> None:
    make_worker(heartbeat_at=now() - timedelta(hours=1))
    assert "no heartbeat (was running)" in text_of(admin_client.get(list_of("worker")))


def test_a_number_too_long_to_read_breaks_neither_the_list_nor_its_page(
    admin_client: Client,
) -> None:
    job, neighbour = make_job("failed"), make_job("queued")
    spoil(job.pk)
    assert rows_of(admin_client.get(list_of("job"))) == [neighbour, job]
    assert "its row was edited by hand" in text_of(admin_client.get(page_of(job)))


def test_a_row_edited_into_nonsense_breaks_neither_the_list_nor_its_page(
    admin_client: Client,
) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("it stores no text that is not JSON")
    job, neighbour = make_job("failed"), make_job("queued")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = 1")
        try:
            cursor.execute(
                "UPDATE django_durable_jobs_job SET payload = '{\"secret\": <b>', target = '[' "
                "WHERE id = %s",
                [job.pk.hex],
            )
            cursor.execute(
                "UPDATE django_durable_jobs_execution"
                " SET result = '{', progress = '}', metadata = '7'"
            )
        finally:
            cursor.execute("PRAGMA ignore_check_constraints = 0")
    assert rows_of(admin_client.get(list_of("job"))) == [neighbour, job]
    text_of(admin_client.get(list_of("execution")))
    text = text_of(admin_client.get(page_of(job)))
    assert "its row was edited by hand" in text
    assert "{&quot;secret&quot;: &lt;b&gt;" in text
    text_of(admin_client.get(page_of(Execution.objects.defer("result", "progress").get())))
    partly = client_with(*VIEW, "view_payload")
    assert "&lt;b&gt;" not in text_of(partly.get(page_of(job)))


class Elements(HTMLParser):
    """Collect what a browser would take for elements and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}


HOSTILE = (
    """<script>x()</script>"><img src=x onerror=x()></pre></textarea>{{7*7}}{% x %}javascript:x()"""
)


def test_hostile_text_stays_text_on_every_page(admin_client: Client) -> None:
    def make(text: str) -> tuple[Job, Execution]:
        job = make_job(
            "failed", type=text, owner_id=text, project_id=text, idempotency_key=text,
            payload={text: text}, meta={text: text}, target={"kind": text, "id": text},
            cancelled_reason=text, execution=False,
        )  # fmt: skip
        worker = make_worker(host=text, error=text, version=text[:32], types=[text], queues=[text])
        execution = make_execution(
            job, worker=worker, error=text, error_code=text[:64], traceback=text,
            metadata={text: text}, receipt=text, result=[text], progress={"done": text, "total": 1},
            resolved_at=job.created_at, resolved_by=text, resolved_note=text,
        )  # fmt: skip
        return job, execution

    def pages(job: Job, execution: Execution) -> list[str]:
        gets = [*map(list_of, ("job", "execution", "worker")), page_of(job), page_of(execution),
                page_of(execution.worker), list_of("job") + "?q=" + job.type,
                list_of("job") + "?type=" + job.type]  # fmt: skip
        confirm = reverse("admin:django_durable_jobs_job_requeue", args=[job.pk])
        return [*(text_of(admin_client.get(url)) for url in gets),
                text_of(admin_client.post(confirm))]  # fmt: skip

    plain = [Elements(text) for text in pages(*make("harmless"))]
    Execution.objects.all().delete()
    Job.objects.all().delete()
    Worker.objects.all().delete()
    for one, other in zip(plain, map(Elements, pages(*make(HOSTILE))), strict=True):
        assert other.tags == one.tags
        assert other.names == one.names


def test_pages_have_no_script_or_style_of_their_own_inside(
    admin_client: Client, told: tuple[Job, Execution]
) -> None:
    for url in (list_of("job"), page_of(told[0]), page_of(told[1])):
        text = text_of(admin_client.get(url))
        assert not re.search(r"<style|\sstyle=|\son\w+=", text)
        assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", text))
