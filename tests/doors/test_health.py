"""The page for probes: what it answers, to whom, and what it costs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path

from django_durable_jobs.contrib.health.views import HealthView
from django_durable_jobs.models import Worker
from tests.factories import make_job, make_worker, now

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

urlpatterns = [
    path("health/", include("django_durable_jobs.contrib.health.urls")),
    path("other/", HealthView.as_view(namespace="other", max_age=60)),
]


def test_all_is_well(client: Client) -> None:
    make_worker()
    response = client.get("/health/")
    assert response.status_code == 200
    assert response.json() == {"healthy": True, "problems": [], "workers": 1}
    assert "no-store" in response["Cache-Control"]


def test_what_is_wrong_is_told_with_503(client: Client) -> None:
    response = client.get("/health/")
    assert response.status_code == 503
    assert response.json() == {
        "healthy": False,
        "problems": [
            {"code": "no-worker", "message": "No live worker serves the namespace."},
        ],
        "workers": 0,
    }


def test_namespace_and_limit_are_those_of_the_route(client: Client) -> None:
    make_worker(namespace="other")
    make_job(namespace="other", run_at=now() - timedelta(seconds=100))
    told = client.get("/other/").json()
    assert [problem["code"] for problem in told["problems"]] == ["job-late"]
    assert told["oldest_due"] >= 100


def test_nothing_is_told_that_names_somebody(client: Client) -> None:
    make_worker(
        namespace="other",
        host="db.internal",
        healthy=False,
        error="password authentication failed for user admin",
        types=["secret.type"],
    )
    make_job(
        namespace="other", type="secret.type", owner_id="acme", run_at=now() - timedelta(hours=1)
    )
    text = client.get("/other/").content.decode()
    assert len(Worker.objects.all()) == 1
    assert "worker-unhealthy" in text
    assert "job-late" in text
    for word in ("internal", "admin", "secret", "acme", "4242"):
        assert word not in text


def test_head_is_answered_and_nothing_else(client: Client) -> None:
    make_worker()
    assert client.head("/health/").status_code == 200
    assert client.head("/health/").content == b""
    for method in ("post", "put", "patch", "delete", "options", "trace"):
        assert getattr(client, method)("/health/").status_code == 405


def test_it_costs_two_queries_and_looks_up_neither_session_nor_user(client: Client) -> None:
    """One for the workers, one for the database's time."""
    make_worker()
    client.force_login(User.objects.create(username="somebody"))
    with CaptureQueriesContext(connection) as queries:
        response: Any = client.get("/health/")
    assert response.status_code == 200
    assert len(queries) == 2, [query["sql"] for query in queries]
    assert not response.cookies


def test_it_is_answered_where_the_project_demands_a_login(client: Client, settings: Any) -> None:
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    make_worker()
    assert client.get("/health/").status_code == 200


def test_it_is_answered_under_asgi() -> None:
    make_worker()
    response: HttpResponse = async_to_sync(AsyncClient().get)("/health/")
    assert response.status_code == 200


@pytest.fixture
def atomic_requests() -> Any:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connection.settings_dict["ATOMIC_REQUESTS"] = False


def test_a_database_that_is_gone_gives_503_also_where_requests_are_transactions(
    client: Client, atomic_requests: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise OperationalError("connection to db-7.internal failed")

    connection.close()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "connect", refuse)
        response = client.get("/health/")
    assert response.status_code == 503
    assert response.json()["problems"] == [
        {"code": "database", "message": "The database does not answer (OperationalError)."}
    ]


@override_settings(ALLOWED_HOSTS=["example.com"])
def test_the_host_must_be_one_of_the_projects(client: Client) -> None:
    """As for every page: a probe has to send a name that ALLOWED_HOSTS has."""
    make_worker()
    assert client.get("/health/", headers={"host": "10.0.0.1"}).status_code == 400
    assert client.get("/health/", headers={"host": "example.com"}).status_code == 200
