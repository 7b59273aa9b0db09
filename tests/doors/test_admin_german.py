"""The admin in German: nothing of ours on its pages stays English."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils.translation import override

from django_durable_jobs import explain, job, schedule
from django_durable_jobs.models import Job, Loop, Schedule, TickClaim, TickGap
from django_durable_jobs.registry import handlers, schedules
from tests.factories import make_job, make_worker, now

pytestmark = [pytest.mark.django_db, pytest.mark.once]

APP = "django_durable_jobs"
# Words that are the same in both languages, names of products and units.
ALIKE = {
    "Job", "Jobs", "Name", "Status", "Worker", "Host", "Traceback", "UTC", "Handler", "Version",
    "Durable Jobs", "Filter", "Id", "ID",
}  # fmt: skip
UNITS = {"in", "ms", "s", "min", "h", "p"}
# What rows and users have in them.
# What Django itself has no German for yet (6.1: the button of a list's actions).
DJANGOS = {"Run"}
DATA = {"admin", "default", "ever", "True", "CET", "ValueError no"}
TOLD_BY = ("title", "aria-label", "alt", "placeholder", "data-ddj-failed", "data-ddj-paused")


class Told(HTMLParser):
    """Gather the texts of a page that people read or hear, without what names rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: set[str] = set()
        self._within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "bdi", "code", "pre", "textarea", "option", "time"):
            self._within.append(tag)
        self.texts |= {value or "" for name, value in attrs if name in TOLD_BY}
        if tag == "input" and ("type", "submit") in attrs:
            self.texts |= {value or "" for name, value in attrs if name == "value"}

    def handle_endtag(self, tag: str) -> None:
        if self._within and self._within[-1] == tag:
            self._within.pop()

    def handle_data(self, data: str) -> None:
        if not self._within:
            self.texts.add(" ".join(data.split()))


@pytest.fixture
def rows() -> Iterator[dict[str, Any]]:
    """Make rows whose own words have no letters, so that all letters on a page are ours."""
    with handlers.preserved(), schedules.preserved():
        for each in handlers.handlers():
            handlers.remove(each)

        @job("1.2")
        def handler() -> None: ...

        @schedule("3.4", cron="0 2 * * mon-fri")
        def ticking() -> None: ...

        worker = make_worker(host="0", version="1")
        failed = make_job("failed", type="1.2", owner_id="5", worker=worker)
        interrupted = make_job("interrupted", type="1.2", worker=worker)
        waits = make_job(type="1.2", run_at=now() + timedelta(hours=1))
        make_job("running", type="1.2", worker=worker)
        make_job("completed", type="1.2", worker=worker)
        columns = {"namespace": "default", "name": "3.4", "reason": "missed"}
        ticks = Schedule.objects.create(
            namespace="default", name="3.4", kind="cron", when="0 2 * * mon-fri", timezone="UTC",
            declared_at=now(), last_job=failed, last_error="6", next_fire=now(), rule="7",
        )  # fmt: skip
        TickClaim.objects.create(
            scheduled_at=now(), claimed_at=now(), outcome="skipped",
            **(columns | {"reason": "overlap"}),
        )  # fmt: skip
        TickGap.objects.create(first=now(), last=now(), count=3, **(columns | {"reason": "paused"}))
        loop = Loop.objects.create(name="8", job_type="1.2", every=timedelta(hours=1))
        yield {
            "job": waits, "failed": failed, "interrupted": interrupted, "schedule": ticks,
            "loop": loop, "worker": worker,
        }  # fmt: skip


PAGES = {
    "overview": ("overview_changelist", ""),
    "jobs": ("job_changelist", ""),
    "a job that waits": ("job_change", "job"),
    "a job that failed": ("job_change", "failed"),
    "executions": ("execution_changelist", ""),
    "workers": ("worker_changelist", ""),
    "a worker": ("worker_change", "worker"),
    "schedules": ("schedule_changelist", ""),
    "a schedule": ("schedule_change", "schedule"),
    "tick claims": ("tickclaim_changelist", ""),
    "tick gaps": ("tickgap_changelist", ""),
    "loops": ("loop_changelist", ""),
    "a loop": ("loop_change", "loop"),
    "a new loop": ("loop_add", ""),
}
QUESTIONS = [
    ("job", "cancel"), ("job", "run_now"), ("failed", "requeue"), ("interrupted", "resolve"),
    ("schedule", "pause"), ("schedule", "fire"), ("loop", "disable"), ("loop", "run_now"),
]  # fmt: skip


def told(response: Any) -> set[str]:
    assert response.status_code == 200
    return Told(response.content.decode()).texts


def left_over(german: set[str], english: set[str]) -> set[str]:
    """Return the words that a page has in both languages, without ids, times and paths."""
    texts = {
        " ".join(re.sub(r"\b[a-f]{8}\b|\S*[#:=./_*@-]\w\S*|\S*\d\S*|[^\w\s]", " ", text).split())
        for text in german & english
    }
    return {text for text in texts if set(text.split()) - UNITS} - ALIKE - DJANGOS - DATA


@pytest.mark.parametrize("name", PAGES)
def test_no_text_of_a_page_is_the_same_as_in_english(
    name: str, rows: dict[str, Any], admin_client: Client
) -> None:
    view, row = PAGES[name]
    url = reverse(f"admin:{APP}_{view}", args=[rows[row].pk] if row else [])
    with override("de"):
        german = told(admin_client.get(url))
    assert left_over(german, told(admin_client.get(url))) == set()


@pytest.mark.parametrize(("name", "deed"), QUESTIONS)
def test_no_text_of_a_question_is_the_same_as_in_english(
    name: str, deed: str, rows: dict[str, Any], admin_client: Client
) -> None:
    row = rows[name]
    url = reverse(f"admin:{APP}_{row._meta.model_name}_{deed}", args=[row.pk])
    with override("de"):
        german = told(admin_client.post(url))
    assert left_over(german, told(admin_client.post(url))) == set()


def test_what_was_done_is_told_and_kept_in_german(
    rows: dict[str, Any], admin_client: Client
) -> None:
    url = reverse(f"admin:{APP}_job_cancel", args=[rows["job"].pk])
    with override("de"):
        answer = admin_client.post(url, {"confirmed": "yes", "reason": "weil"}, follow=True)
        history = admin_client.get(reverse(f"admin:{APP}_job_history", args=[rows["job"].pk]))
    assert "Zurückgezogen: 1." in answer.content.decode()
    assert "Zurückgezogen. Grund: weil" in history.content.decode()


def test_why_a_job_does_not_run_is_told_in_german() -> None:
    waits = make_job(type="1.2", run_at=now() + timedelta(days=3, hours=1))
    make_worker()
    with override("de"):
        said = str(explain(waits.pk))
    assert re.match(r"Er wartet auf seine Zeit: fällig in [23] Tagen", said)


def test_states_and_their_reasons_have_german_names() -> None:
    with override("de"):
        assert Job(state="queued").get_state_display() == "eingereiht"
        assert str(Loop._meta.verbose_name_plural) == "Daueraufträge"
    assert User.objects.count() == 0
