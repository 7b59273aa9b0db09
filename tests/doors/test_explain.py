"""`durablejobs explain`, the sentence on a job's page in the admin, and the page of all codes."""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_durable_jobs import explain, pause
from django_durable_jobs.db import ManualClock, use_clock
from django_durable_jobs.errors import JobDoesNotExist
from django_durable_jobs.explaining import CODES, READY
from django_durable_jobs.explaining.sentences import sentence
from django_durable_jobs.models import Job
from django_durable_jobs.states import State
from tests.factories import make_job, make_worker, now

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "why.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    clock = ManualClock(now())
    with use_clock(clock):
        yield clock


# The command


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("durablejobs", "explain", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_the_command_says_what_there_is_to_say_line_by_line() -> None:
    job = make_job()
    pause("default")
    head, *lines = run(str(job.pk)).splitlines()
    assert head == f"test.job {job.pk}, queued"
    assert lines == str(explain(job)).replace(" No worker", "\nNo worker").split("\n")


@pytest.mark.django_db
def test_the_command_tells_it_as_json() -> None:
    make_worker()
    job = make_job(State.FAILED)
    told = json.loads(run(str(job.pk), "--json"))
    assert told == explain(job).as_dict()
    assert (told["code"], told["job_id"], told["type"]) == ("failed", str(job.pk), "test.job")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(uuid.UUID(int=7))], "There is no job with this id"),
        (["019283a4"], "There is no job with this id"),
        ([str(uuid.UUID(int=7)), "--database", "nosuch"], "There is no database 'nosuch'"),
    ],
)
def test_what_there_is_not_exits_with_2(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        run(*arguments)
    assert refused.value.returncode == 2


# The admin


def text_of(job: Job) -> str:
    client = Client()
    client.force_login(User.objects.create_superuser(f"u{User.objects.count()}"))
    page = client.get(reverse("admin:django_durable_jobs_job_change", args=[job.pk]))
    assert page.status_code == 200
    return " ".join(page.content.decode().split())


@pytest.mark.django_db
def test_a_jobs_page_says_why_it_is_not_running() -> None:
    job = make_job(owner_id="<acme>")
    assert "Why it is not running" in text_of(job)
    assert "No worker serves the namespace default." in text_of(job)
    make_worker()
    make_job(State.RUNNING, owner_id="<acme>")
    assert "Its owner &lt;acme&gt; may have 1 job at a time" in text_of(job)


@pytest.mark.django_db
def test_the_page_of_a_job_that_has_ended_says_what_became_of_it() -> None:
    text = text_of(make_job(State.INTERRUPTED))
    assert "How it stands" in text
    assert "Nobody knows how far it came" in text
    assert "Why it is not running" not in text


@pytest.mark.django_db
def test_what_people_gave_as_a_reason_is_masked_on_the_page() -> None:
    job = make_job()
    pause("default", reason="password=s3cr3t was wrong")
    client = Client()
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_job"))
    client.force_login(user)
    page = client.get(reverse("admin:django_durable_jobs_job_change", args=[job.pk]))
    assert b"The reason given: password=" in page.content
    assert b"s3cr3t" not in page.content
    assert "s3cr3t" in text_of(job)


@pytest.mark.django_db
def test_a_page_whose_job_is_deleted_meanwhile_is_there_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise JobDoesNotExist

    monkeypatch.setattr("django_durable_jobs.admin.jobs.explain", gone)
    assert "Why it is not running" in text_of(make_job())


# The page of all codes


def test_every_code_has_a_row_and_no_other() -> None:
    assert sorted(ROWS) == sorted(CODES)


def test_the_codes_with_which_a_claim_may_take_it_are_named() -> None:
    (named,) = re.findall(r"^With (.*?) a claim may take", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", named)) == READY


AT = datetime(2026, 12, 1, 8, 0, tzinfo=UTC)
HELD = {"worker": "web-1:4711", "attempt": 1, "finished_at": AT.isoformat(), "by": "ann"}
OWN = "019283a4-0b1c-7d2e-9f30-415263748596"
FACTS: dict[str, dict[str, Any]] = {
    "scheduled": {"in_seconds": 12_000, "due_at": AT.isoformat()},
    "retry": {"attempt": 2, "in_seconds": 40, "due_at": AT.replace(second=40).isoformat()},
    "not_eligible": {"for_seconds": 600, "since": "2026-12-01T07:50:00+00:00", "in_seconds": 30},
    "asked_again": {"for_seconds": 600, "since": "2026-12-01T07:50:00+00:00"},
    "namespace_paused": {
        "namespace": "default",
        "since": "2026-12-01T07:00:00+00:00",
        "by": "ann",
        "reason": "the disk is full",
    },
    "no_worker": {"namespace": "default", "draining": 0, "silent": 0, "silent_seconds": None},
    "queue_not_served": {"queue": "mail", "workers": 2},
    "no_handler": {"type": "invoice.send", "queue": "mail", "elsewhere": False, "known": False},
    "schedule_gone": {
        "schedule": "nightly",
        "since": "2026-12-01T07:00:00+00:00",
        "type": "schedule:nightly",
    },
    "schedule_paused": {"schedule": "nightly", "since": "2026-12-01T07:00:00+00:00"},
    "namespace_full": {"namespace": "default", "held": 10, "cap": 10},
    "owner_cap": {"owner": "acme", "cap": 1, "held": 1, "jobs": [{"id": OWN, "state": "running"}]},
    "no_free_slot": {"slots": 8, "workers": 2},
    "entry_missing": {},
    "turn": {"jobs": 3, "or_more": False, "owner": "acme"},
    "turn_owners": {"owners": 3, "or_more": False},
    "claimable": {"worker": "web-1:4711", "late": False, "for_seconds": 1},
    "claimed": {"worker": "web-1:4711", "for_seconds": 2},
    "running": HELD | {"for_seconds": 300, "since": "2026-12-01T07:55:00+00:00"},
    "stop_requested": {"worker": "web-1:4711", "asked_seconds": 3, "late": False},
    "worker_silent": {
        "worker": "web-1:4711",
        "silent_seconds": 20,
        "lease_seconds": 10,
        "requeued": False,
        "live": True,
    },
    "claim_lost": {},
    "completed": HELD,
    "resolved": HELD,
    "failed": HELD | {"attempt": 3, "error_code": ""},
    "interrupted": HELD | {"reason": "worker_lost", "started": True},
    "stuck": {"worker": "web-1:4711", "stuck": 1},
    "cancelled": HELD | {"reason": "a duplicate"},
    "replaced": HELD,
    "withdrawn": HELD | {"reason": "record_deleted"},
}


@pytest.mark.parametrize("code", CODES)
def test_the_page_has_each_sentence_as_it_is_said(code: str) -> None:
    with timezone.override("UTC"):
        assert ROWS[code] == sentence(code, FACTS[code])
