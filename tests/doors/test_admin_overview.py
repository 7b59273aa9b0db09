"""The overview: the four questions of a newcomer, plots, and who may see what of them."""

from __future__ import annotations

import re
import uuid
import xml.etree.ElementTree as ET
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse
from django.utils import translation

from django_durable_jobs.admin import register
from django_durable_jobs.models import Leader, Loop, Namespace, Overview, Schedule, Worker
from tests.factories import make_execution, make_job, make_worker, now

pytestmark = pytest.mark.django_db

URL = "/admin/django_durable_jobs/overview/"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "</title></svg><script>alert(1)</script>",
    "{{ namespace }}{% now 'Y' %}&amp;\u202e",
]
OF_JOBS = {"ddj-tiles", "ddj-failed", "ddj-stuck", "ddj-next"}


def client_with(*codenames: str) -> Client:
    user = User.objects.create_user(f"u{User.objects.count()}", is_staff=True)
    found = Permission.objects.filter(codename__in=codenames)
    assert len(found) == len(codenames)
    user.user_permissions.set(found)
    client = Client()
    client.force_login(user)
    return client


def page(client: Client, query: str = "") -> str:
    response = client.get(f"{URL}{query}")
    assert response.status_code == 200
    return str(response.content.decode())


def parts_in(text: str) -> set[str]:
    """Return the ids of the sections and bars that a page has."""
    return set(re.findall(r'<(?:section|div)[^>]* id="(ddj-(?!overview|parts)[\w-]+)"', text))


def section(text: str, name: str) -> str:
    found = re.search(rf'<(section|div)[^>]* id="ddj-{name}".*?</\1>', text, re.DOTALL)
    assert found is not None, name
    return " ".join(re.sub(r"<[^>]+>", " ", found[0]).split())


def make_schedule(name: str, **values: Any) -> Schedule:
    columns = {"namespace": "default", "name": name, "kind": "cron", "when": "* * * * *"}
    columns |= {"timezone": "UTC", "declared_at": now(), "rule": "x"}
    return Schedule.objects.create(**(columns | values))


def fill() -> None:
    """Have something of everything."""
    worker = make_worker()
    make_job("failed", owner_id="acme", worker=worker)
    make_job("completed", worker=worker)
    make_job("interrupted", worker=worker)
    make_job("running", owner_id="acme", worker=worker)
    make_job(owner_id="acme")
    make_job(run_at=now() + timedelta(hours=1))
    make_schedule("shop.report", next_fire=now() + timedelta(minutes=1))
    make_schedule("shop.broken", last_error="RuntimeError: no template", last_finish=now())
    Loop.objects.create(name="weekly", job_type="test.job")
    Loop._base_manager.update(last_error="ValueError: sold out")


# Where it is, and who sees what


def test_it_is_the_first_page_of_the_app_in_the_index_and_in_the_side_bar(
    admin_client: Client,
) -> None:
    for url in (reverse("admin:index"), URL):
        found = admin_client.get(url).context["available_apps"]
        (app,) = [each for each in found if each["app_label"] == "django_durable_jobs"]
        assert app["models"][0]["admin_url"] == URL
        assert app["models"][0]["name"].strip() == "Overview"


def test_it_has_a_place_on_a_site_of_a_projects_own(
    settings: Any, admin_user: User, admin_client: Client
) -> None:
    site = admin.AdminSite("ops")
    register(site)
    urls = ModuleType("urls_of_ops")
    urls.urlpatterns = [path("ops/", site.urls), path("admin/", admin.site.urls)]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    fill()
    text = str(admin_client.get("/ops/django_durable_jobs/overview/").content.decode())
    assert "/ops/django_durable_jobs/job/" in text
    assert "/ops/django_durable_jobs/worker/" in text
    assert 'href="/admin/' not in text


def test_it_asks_for_a_login_and_for_a_permission_to_view_something() -> None:
    assert Client().get(URL).status_code == 302
    assert client_with().get(URL).status_code == 403
    assert client_with("cancel_job").get(URL).status_code == 403


@pytest.mark.parametrize(
    ("codenames", "expected"),
    [
        (["view_job"], OF_JOBS),
        (["view_worker"], {"ddj-workers"}),
        (["view_execution"], {"ddj-tiles", "ddj-ended", "ddj-waiting", "ddj-running"}),
        (
            ["view_execution", "view_worker"],
            {"ddj-tiles", "ddj-ended", "ddj-waiting", "ddj-running", "ddj-lanes", "ddj-workers"},
        ),
        (["view_schedule"], {"ddj-next", "ddj-failed"}),
        (["view_loop"], {"ddj-failed"}),
    ],
)
def test_everybody_sees_the_parts_that_they_may_view(
    codenames: list[str], expected: set[str]
) -> None:
    fill()
    assert parts_in(page(client_with(*codenames))) == expected


def test_what_is_of_another_kind_is_not_told_inside_a_part_either() -> None:
    fill()
    of_jobs = page(client_with("view_job"))
    assert "shop.report" not in of_jobs
    assert "shop.broken" not in of_jobs
    assert "weekly" not in of_jobs
    assert "host.example" not in of_jobs
    of_schedules = page(client_with("view_schedule"))
    assert "test.job" not in of_schedules
    assert "/job/" not in of_schedules
    assert "schedule/" in of_schedules


def test_nothing_that_a_job_carries_is_shown_and_errors_are_masked(admin_client: Client) -> None:
    job = make_job("failed", payload={"card": "open-1"}, meta={"note": "open-2"}, execution=False)
    make_execution(
        job,
        error="no: api_token=s3cr3t at https://me:s3cr3t@example.org/",
        traceback="open-3",
        result={"open": "open-4"},
        receipt={"open": "open-5"},
    )
    text = page(admin_client)
    assert "no: api_token=" in text
    assert not re.search(r"open-\d|s3cr3t", text)


# The four questions


def test_without_a_live_worker_a_bar_has_the_command_that_starts_one(admin_client: Client) -> None:
    make_job()
    make_worker(heartbeat_at=now() - timedelta(minutes=5), host="silent")
    make_worker(state="draining", host="draining")
    text = page(admin_client)
    assert "python manage.py runscheduler" in section(text, "nobody")
    assert "silent:4242 no heartbeat" in section(text, "workers")
    assert "1 jobs: no worker is alive" in section(text, "stuck")
    make_worker(host="alive")
    text = page(admin_client)
    assert "ddj-nobody" not in parts_in(text)
    assert "alive:4242 running" in section(text, "workers")


def test_the_command_names_a_namespace_that_is_not_the_projects(admin_client: Client) -> None:
    Namespace.objects.create(name="beta")
    text = page(admin_client, "?namespace=beta")
    assert "python manage.py runscheduler --namespace beta" in section(text, "nobody")


def test_the_leader_is_told_and_that_it_is_gone(admin_client: Client) -> None:
    worker = make_worker()
    assert "Nobody leads" in section(page(admin_client), "workers")
    Leader.objects.create(
        namespace="default",
        worker=worker.pk,
        acquired_at=now(),
        expires_at=now() + timedelta(minutes=1),
    )
    assert "host.example:4242 leads since" in section(page(admin_client), "workers")
    make_worker(host="other")
    Worker.objects.filter(pk=worker.pk).update(state="lost")
    assert "The leader is gone" in section(page(admin_client), "workers")


def test_a_worker_in_trouble_and_threads_that_do_not_stop_are_told(admin_client: Client) -> None:
    make_worker(healthy=False, error="gone: password=s3cr3t", stuck=2)
    told = section(page(admin_client), "workers")
    assert "in trouble with the database. gone: password=•••" in told
    assert "2 threads do not stop" in told


def test_what_is_due_next_is_schedules_and_jobs_by_time(admin_client: Client) -> None:
    make_job(type="late.job", run_at=now() + timedelta(hours=3, minutes=1))
    make_job(type="soon.job", run_at=now() + timedelta(seconds=100))
    make_schedule("middle", next_fire=now() + timedelta(minutes=30, seconds=20))
    make_schedule("paused", next_fire=now(), paused_at=now())
    make_schedule("tardy", next_fire=now() - timedelta(minutes=10))
    told = section(page(admin_client), "next")
    names = re.findall(r"soon\.job|late\.job|middle|tardy", told)
    assert names == ["tardy", "soon.job", "middle", "late.job"]
    assert "overdue for 10 min" in told
    assert "in 30 min" in told
    assert "in 3 h" in told
    assert "4 schedules" not in told
    assert "3 schedules: 0 running, 1 paused, 0 failed last." in told


def test_what_failed_is_told_with_its_error_and_with_those_that_failed_alike(
    admin_client: Client,
) -> None:
    for _n in range(3):
        make_job("failed", type="shop.mail")
    told = section(page(admin_client), "failed")
    assert re.search(r"shop\.mail . 3 ", told)
    assert "ValueError: no" in told


def test_interrupted_jobs_schedules_and_loops_that_failed_are_told(admin_client: Client) -> None:
    fill()
    told = section(page(admin_client), "failed")
    assert "1 interrupted job waits for a decision" in told
    assert "its worker's lease ran out" in told.replace("&#x27;", "'")
    assert "Schedules whose last run failed shop.broken" in told
    assert "Loops with an error weekly ValueError: sold out" in told


def test_an_id_leads_to_the_page_of_its_job(admin_client: Client) -> None:
    job = make_job()
    response = admin_client.get(URL, {"find": f" {job.pk} "})
    assert response.status_code == 302
    assert response["Location"] == reverse("admin:django_durable_jobs_job_change", args=[job.pk])


def test_other_words_lead_to_the_list_of_jobs(admin_client: Client) -> None:
    response = admin_client.get(URL, {"find": "order:1&x"})
    assert response["Location"] == "/admin/django_durable_jobs/job/?q=order%3A1%26x"


def test_an_id_that_no_job_has_is_said_to_be_none(admin_client: Client) -> None:
    id = uuid.uuid4()
    assert f"No job has the id {id}" in section(page(admin_client, f"?find={id}"), "stuck")


def test_who_may_not_view_jobs_cannot_ask_whether_there_is_one() -> None:
    job = make_job()
    text = page(client_with("view_worker"), f"?find={job.pk}")
    assert str(job.pk) not in text


def test_why_jobs_do_not_run_is_told_with_how_many_and_which(admin_client: Client) -> None:
    make_worker()
    for _n in range(2):
        make_job(type="no.such")
    told = section(page(admin_client), "stuck")
    assert "2 jobs: no live worker knows their type" in told
    assert "no.such" in told


def test_a_paused_namespace_is_told_with_by_whom_and_why(admin_client: Client) -> None:
    Namespace.objects.create(
        name="default", paused_at=now(), paused_by="ann", paused_reason="new <disk>"
    )
    told = section(page(admin_client), "paused")
    assert "By ann since" in told
    assert "new &lt;disk&gt;" in told


def test_the_states_are_counted(admin_client: Client) -> None:
    fill()
    told = section(page(admin_client), "tiles")
    assert told.endswith(
        "1 due now 1 for later now 0 claimed now 1 running now"
        " 1 completed last hour 1 failed last hour 1 interrupted last hour"
    )


# What is looked at


def test_a_range_and_a_namespace_can_be_chosen_and_nonsense_is_the_default(
    admin_client: Client,
) -> None:
    Namespace.objects.create(name="default")
    Namespace.objects.create(name="beta")
    make_job("completed", namespace="beta")
    text = page(admin_client, "?range=15m&namespace=beta")
    assert "1 completed last 15 minutes" in section(text, "tiles")
    assert 'href="?range=24h&amp;namespace=beta"' in text
    for query in ("", "?range=nonsense&namespace=nonsense"):
        text = page(admin_client, query)
        assert "0 completed last hour" in section(text, "tiles")
        assert 'href="?range=1h" aria-current="true"' in text


def test_the_parts_alone_are_what_the_page_has_in_it(admin_client: Client) -> None:
    fill()
    whole, parts = page(admin_client), page(admin_client, "?parts=1")
    assert "<html" not in parts
    assert parts_in(parts) == parts_in(whole)


def test_figures_of_less_than_was_asked_for_say_so(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _n in range(3):
        make_job("completed")
    assert "newest" not in section(page(admin_client), "ended")
    monkeypatch.setattr("django_durable_jobs.figures.newest.NEWEST", 1)
    assert "These figures are of the newest" in page(admin_client)


def test_it_takes_the_same_number_of_queries_however_much_there_is(admin_client: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as context:
            page(admin_client)
        return len(context)

    fill()
    few = queries()
    for n in range(12):
        worker = make_worker(host=f"h{n}")
        make_job("failed", owner_id=f"o{n}", type=f"t{n}", worker=worker)
        make_job("interrupted", worker=worker)
        make_job(owner_id=f"o{n}", type=f"t{n}")
        make_schedule(f"s{n}", last_error="no", next_fire=now())
    assert queries() == few <= 35


# What it is made of


def test_the_page_has_no_script_style_or_handler_of_its_own_and_nothing_from_elsewhere(
    admin_client: Client,
) -> None:
    fill()
    parts = page(admin_client, "?parts=1")
    assert not re.search(r"<script|<style|\sstyle=|\son\w+=", parts)
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", parts)
    scripts = re.findall(r"<script([^>]*)>", page(admin_client))
    assert all("src=" in each for each in scripts if "json" not in each)


def test_each_plot_is_sound_and_has_a_title_a_description_and_a_table(admin_client: Client) -> None:
    fill()
    text = page(admin_client, "?parts=1")
    plots = re.findall(r'<svg class="ddj-plot".*?</svg>', text, re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        root = ET.fromstring(plot)
        assert root.findtext("title")
        assert root.findtext("desc")
    assert text.count("<summary>As a table</summary>") == 3
    ids = re.findall(r'\sid="([^"]+)"', page(admin_client))
    assert sorted(set(ids)) == sorted(ids)


def test_numbers_in_plots_are_the_same_in_every_language(
    admin_client: Client, settings: Any
) -> None:
    settings.LANGUAGE_CODE = "de"
    settings.USE_THOUSAND_SEPARATOR = True
    fill()
    with translation.override("de"):
        text = page(admin_client, "?parts=1")
    for plot in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        for value in re.findall(r'\s(?:x|y|width|height|cx|cy)="([^"]*)"', plot):
            assert re.fullmatch(r"-?\d+(\.\d+)?%?", value)


@pytest.mark.parametrize("words", HOSTILE)
def test_names_that_are_meant_to_do_harm_are_only_shown(words: str, admin_client: Client) -> None:
    worker = make_worker(host=words[:200])
    make_job("failed", type=words[:200], owner_id=words[:200], worker=worker)
    make_job("running", type=words[:200], owner_id=words[:200], worker=worker)
    make_job(type=words[:200], owner_id=words[:200])
    make_schedule(words[:200], last_error=words, next_fire=now())
    parts = page(admin_client, "?parts=1")
    assert "<script" not in parts
    assert not re.search(r"<[^>\"']*(?:\"[^\"]*\"[^>\"']*|'[^']*'[^>\"']*)*\son\w+=", parts)
    for plot in re.findall(r"<svg.*?</svg>", parts, re.DOTALL):
        ET.fromstring(plot)


def test_an_empty_project_has_a_page_of_sentences(admin_client: Client) -> None:
    text = page(admin_client)
    assert "Nothing ended in this time." in text
    assert "Nothing: no schedule is going to fire" in text
    assert "Nothing is stuck" in text
    assert '<svg class="ddj-plot"' not in text


def test_the_overview_stands_for_no_rows_and_can_be_changed_by_nobody(admin_client: Client) -> None:
    assert not Permission.objects.filter(content_type__model="overview").exists()
    assert Overview._meta.proxy
    assert admin_client.get(f"{URL}add/").status_code == 404
