"""Whatever jobs, workers, schedules and loops hold stays text and hidden; pages stay small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.urls import reverse

from django_durable_jobs import job
from django_durable_jobs.models import Execution, Job, Loop, Schedule, TickClaim, TickGap, Worker
from django_durable_jobs.registry import handlers
from tests.doors.test_admin import client_with
from tests.doors.test_admin_permissions import ACTIONS, APP, everything_asked, rights
from tests.factories import make_execution, make_job, make_worker, now, spoil

pytestmark = [pytest.mark.django_db, pytest.mark.once]

RIGHT_TO_LEFT = "\u202egnp.exe\u2066"
HOSTILE = {
    "markup": """<script>x()</script>"><img src=x onerror=x()></pre></textarea></style></title>"""
    """<svg/onload=x()>' onmouseover='x()" x=` {{ 7|add:7 }}{% debug %}%(n)d%s{0}&lt;b&gt;&#60;""",
    "marks": f"{RIGHT_TO_LEFT}\u200f\u2028\ufeff&shy;",
}
VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "use", "path", "source", "wbr"}
# The path to a page is Django's own, in a block of its own.
ISOLATING = {"nav", "bdi", "pre", "textarea", "option", "title", "script", "button", "h1", "h2"}
INLINE = {"a", "span", "strong", "b", "em", "code", "label", "time", "small", "q"}


class Page(HTMLParser):
    """Read a page as a browser does: its elements, what does not close, what is not isolated."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> stays open" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = tuple(name for name, _value in attrs)
        self.elements.append((tag, names))
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if len(set(names)) < len(names):
            self.faults.append(f"<{tag}> has an attribute twice: {names}")
        if tag == "option":
            self._end_option()
        if tag not in VOID:
            self._open.append(tag)

    def _end_option(self) -> None:
        if self._open and self._open[-1] == "option":  # need not be closed
            self._open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag != "option":
            self._end_option()
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            self.faults.append(f"</{tag}> closes {self._open[-3:]}")
            if tag in self._open:
                while self._open.pop() != tag:
                    pass

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self._open), data))


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    with handlers.preserved():

        @job("books.index")
        def index(text: str = "", api_token: str = "") -> None: ...

        yield


def make_rows(text: str, *, value: Any = None, long: str = "") -> dict[str, Any]:
    """Make a row of each kind that holds ``text`` wherever a column takes text.

    ``value`` is what JSON columns hold, ``long`` what columns without a limit do.
    """
    value, long = value if value is not None else {text: [text]}, long or text
    worker = make_worker(
        host=text[:255], error=long, version=text[:32], types=[text], queues=[text[:64]]
    )
    about = {"kind": text[:256], "id": text[:256]}
    of = {"type": text[:256], "owner_id": text[:256], "queue": text[:64], "project_id": text[:256]}
    given: dict[str, Any] = of | {"payload": value, "meta": {"m": value}, "target": about}
    failed = make_job("failed", **given, cancelled_reason=long, execution=False)
    words: dict[str, Any] = {
        "error": long, "error_code": text[:64], "traceback": long, "metadata": value,
        "receipt": value, "result": value, "progress": {"done": 1, "total": 2, "message": long},
        "resolved_at": now(), "resolved_by": text[:150], "resolved_note": long, "worker": worker,
    }  # fmt: skip
    execution = make_execution(failed, **words)
    interrupted = make_job("interrupted", **given, execution=False)
    make_execution(interrupted, **(words | {"error": ""}))
    running = make_job("running", **given, execution=False)
    make_execution(running, **(words | {"error": "", "traceback": ""}))
    waits = make_job(**given, run_at=now() + timedelta(hours=1))
    ticking: dict[str, Any] = {
        "namespace": "default", "kind": "cron", "when": text[:512], "timezone": "UTC",
        "declared_at": now(), "last_error": long, "paused_reason": long, "paused_by": text[:150],
    }  # fmt: skip
    ticks = Schedule.objects.create(name=text[:200], last_job=failed, **ticking)
    paused = Schedule.objects.create(name="p", paused_at=now(), **ticking)
    columns = {"namespace": "default", "name": text[:200], "reason": text[:64]}
    loops: dict[str, Any] = {"job_type": "books.index", "every": timedelta(hours=1)}
    loop = Loop.objects.create(
        name=text[:200], payload={"text": text}, owner_id=text[:256], **loops
    )
    off = Loop.objects.create(name=f"{text[:190]} off", enabled=False, **loops)
    Loop.objects.filter(pk__in=[loop.pk, off.pk]).update(last_error=long)
    for row in (failed, execution, worker, ticks, loop):
        LogEntry.objects.create(
            user_id=client_user(), content_type=ContentType.objects.get_for_model(row),
            object_id=str(row.pk), object_repr=str(row)[:200], action_flag=CHANGE,
            change_message=f"Cancelled. Reason: {text}",
        )  # fmt: skip
    return {
        "job": waits, "job_requeue": failed, "job_resolve": interrupted, "job_stop": running,
        "job_change": failed, "job_history": failed, "execution": execution, "worker": worker,
        "schedule": ticks, "schedule_resume": paused, "loop": loop, "loop_enable": off,
        "tickclaim": TickClaim.objects.create(
            scheduled_at=now(), claimed_at=now(), outcome="skipped", **columns
        ),
        "tickgap": TickGap.objects.create(first=now(), last=now(), count=1, **columns),
    }  # fmt: skip


def client_user() -> int:
    return int(User.objects.get_or_create(username="somebody")[0].pk)


def unmake_rows() -> None:
    for model in (LogEntry, Loop, TickClaim, TickGap, Schedule, Execution, Job, Worker):
        model._base_manager.all().delete()


def pages_of(client: Client, rows: dict[str, Any]) -> dict[str, str]:
    """Return every page: what can be looked at, each question, and the index with its history."""
    shown = {"index": client.get(reverse("admin:index")).content.decode()}
    for each in everything_asked(rows):
        if each.ways is None:
            continue
        if each.method == "get":
            response = client.get(each.url)
        elif each.name in ACTIONS:
            asked = {name: each.data[name] for name in ("action", "_selected_action")}
            response = client.post(each.url, asked | {"index": "0"})
        elif "_preview" in each.name or not each.ways or each.name.endswith(("_add", "_change")):
            continue
        else:
            response = client.post(each.url, {"tick": each.data["tick"]})
        if response.status_code == 200:
            shown[f"{each.method} {each.name}"] = response.content.decode()
    found = rows["job_change"]
    searched = reverse(f"admin:{APP}_job_changelist")
    for name, query in (
        ("search", {"q": found.owner_id}), ("type", {"type": found.type}),
        ("worker", {"interrupted_by": str(rows["worker"].pk)}),
    ):  # fmt: skip
        shown[name] = client.get(searched, query).content.decode()
    assert len(shown) > 50, sorted(shown)
    return shown


@pytest.fixture
def harmless(admin_client: Client) -> dict[str, Page]:
    shown = pages_of(admin_client, make_rows("harmless"))
    unmake_rows()
    return {name: Page(text) for name, text in shown.items()}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_adds_no_element_and_no_attribute(
    kind: str, harmless: dict[str, Page], admin_client: Client
) -> None:
    before = {name: page.elements for name, page in harmless.items()}
    text = HOSTILE[kind]
    shown = pages_of(admin_client, make_rows(text))
    assert set(shown) == set(before)
    known = {element for page in harmless.values() for element in page.elements}
    for name, page in ((name, Page(text)) for name, text in shown.items()):
        if "overview" in name:  # whose plots are of the moment
            assert not set(page.elements) - known, name
        else:
            # Counted, since names sort otherwise.
            assert Counter(page.elements) == Counter(before[name]), name
        assert not page.faults, name


def test_marks_of_direction_end_with_the_text_that_has_them(admin_client: Client) -> None:
    shown = pages_of(admin_client, make_rows(RIGHT_TO_LEFT))
    for name, text in shown.items():
        for within, data in Page(text).texts:
            if "\u202e" in data and not ISOLATING & set(within):
                block = next(tag for tag in reversed(within) if tag not in INLINE)
                # A block of its own ends what begins in it.
                alone = data.strip() in text and block in ("td", "th", "dd", "div", "li", "p")
                assert alone, (name, within, data)


def test_pages_of_long_texts_stay_small_and_sound(admin_client: Client) -> None:
    long = "<&\"'" * 1_024
    deep: Any = "x"
    for _ in range(8):
        deep = {"k": [deep]}
    rows = make_rows("harmless", value=deep, long=long)
    big = make_job("failed", payload={"n": ["<" * 1_000] * 255})
    rows["job_requeue"] = big
    for name, text in pages_of(admin_client, rows).items():
        limit = 60_000 if "changelist" in name or "selected" in name else 600_000
        assert len(text) < limit, (name, len(text))
        page = Page(text)
        assert not page.faults, name
        assert len(page.ids) == len(set(page.ids)), name
    content = admin_client.get(reverse(f"admin:{APP}_job_change", args=[big.pk])).content
    assert len(content) < 2_000_000  # a payload of 256 KiB of what has to be escaped, once
    Job.objects.filter(pk=big.pk).update(payload={})


# Secrets

SECRET = "s3cr3t-value"
OPEN = "open-value"
CARRIED = {"api_token": SECRET, "plain": OPEN, "deep": [{"db_password": SECRET}]}
SAID = f"no: api_token={SECRET} password: '{SECRET}' at https://me:{SECRET}@example.org/"


def told(client: Client) -> dict[str, str]:
    """Return every page over rows that carry a secret wherever one can be."""
    rows = make_rows("harmless", value=CARRIED, long=SAID)
    Loop.objects.filter(pk=rows["loop"].pk).update(payload={"api_token": SECRET, "text": OPEN})
    target = {"kind": "order", "id": "7", "api_token": SECRET}
    Job.objects.update(meta={"api_token": SECRET})
    Job.objects.filter(pk=rows["job_change"].pk).update(target=target)
    LogEntry.objects.all().delete()
    pages = pages_of(client, rows)
    for each in everything_asked(rows):  # and do all of it
        if each.method == "post" and each.ways:
            response = client.post(each.url, each.data, follow=True)
            pages[f"done {each.name}"] = response.content.decode()
    for name in ("job", "loop", "schedule"):
        url = reverse(f"admin:{APP}_{name}_history", args=[rows[name].pk])
        pages[f"history {name}"] = client.get(url, follow=True).content.decode()
    logged = LogEntry.objects.values_list("object_repr", "change_message")
    pages["logged"] = "\n".join(map(str, logged))
    return pages


@pytest.mark.parametrize("missing", ["view_secrets", "view_payload"])
def test_a_secret_is_on_no_page_in_no_history_and_in_no_log(
    missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="django_durable_jobs")
    client = client_with(*(right for right in rights() if right != missing))
    for name, text in told(client).items():
        assert SECRET not in text, name
        assert missing == "view_secrets" or OPEN not in text, name
    assert SECRET not in caplog.text
    assert OPEN not in caplog.text


def test_who_may_see_secrets_sees_them(admin_client: Client) -> None:
    pages = told(admin_client)
    assert SECRET in pages["get job_change"]
    assert SECRET in pages["get execution_change"]
    assert SECRET in pages["get loop_change"]
    assert SECRET not in pages["logged"]


def test_what_refuses_a_job_does_not_quote_its_payload() -> None:
    waits = make_job(
        type="books.index", payload={SECRET: SECRET}, run_at=now() + timedelta(hours=1)
    )
    client = client_with("view_job", "run_job_now")
    url = reverse(f"admin:{APP}_job_run_now", args=[waits.pk])
    text = client.post(url, {"confirmed": "yes"}, follow=True).content.decode()
    assert "does not fit its handler" in text
    assert SECRET not in text
    spoil(waits.pk)
    text = client.post(url, {"confirmed": "yes"}, follow=True).content.decode()
    assert "cannot be read" in text
