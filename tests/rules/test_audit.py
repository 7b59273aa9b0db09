"""What an event of the audit trail is, how its line reads, and what a broken receiver does."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_jobs import audit as trail
from django_durable_jobs.audit import AuditEvent, audit, audited, event, sent_by
from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.signals import audit_event
from tests.hearing import Ear, connected

LOGGER = "django_durable_jobs.audit"


@pytest.fixture
def ear() -> Iterator[Ear]:
    with Ear() as ear:
        yield ear


def test_nobody_hears_unless_a_receiver_is_connected_or_the_logger_is_enabled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not audited()
    with Ear():
        assert audited()
    assert not audited()
    caplog.set_level(logging.INFO, LOGGER)
    assert audited()


def test_a_receiver_that_is_gone_hears_nothing() -> None:
    def receiver(**kwargs: Any) -> None:
        pass

    audit_event.connect(receiver)
    assert audited()
    del receiver
    assert audit_event.receivers
    assert not audited()


def test_the_setting_turns_it_off(ear: Ear, settings: Any) -> None:
    settings.DURABLE_JOBS = {"AUDIT": False}
    assert not audited()
    audit("it.happened")
    assert ear.events == []
    settings.DURABLE_JOBS = {}
    durable_settings.reset()
    audit("it.happened")
    assert ear.actions == ["it.happened"]


def test_where_nobody_hears_nothing_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "AuditEvent", None)
    audit("it.happened")


def test_an_event_says_what_happened_and_when(ear: Ear) -> None:
    before = datetime.now(UTC)
    audit("it.happened", outcome="failure", reason="rain", metadata={"count": 3})
    (told,) = ear.events
    assert (told.action, told.outcome, told.reason) == ("it.happened", "failure", "rain")
    assert told.metadata == {"count": 3}
    assert before <= told.at <= datetime.now(UTC)
    with pytest.raises(AttributeError):
        told.action = "another"


def test_metadata_is_json_without_what_does_not_exist() -> None:
    told = event(
        "it.happened",
        metadata={
            "id": UUID(int=7),
            "at": datetime(2030, 1, 2, tzinfo=UTC),
            "none": None,
            "n": 1.5,
        },
    )
    assert json.loads(json.dumps(told.metadata)) == {
        "id": "00000000-0000-0000-0000-000000000007",
        "at": "2030-01-02T00:00:00+00:00",
        "n": 1.5,
    }


def test_the_line_has_names_and_values(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    audit("it.happened", reason="it rained", metadata={"type": "a.b", "retry": True, "owner": ""})
    (record,) = caplog.records
    assert record.name == LOGGER
    assert record.getMessage() == (
        'it.happened outcome=success reason="it rained" type=a.b retry=true'
    )
    assert vars(record)["action"] == "it.happened"
    assert vars(record)["metadata"] == {"type": "a.b", "retry": True, "owner": ""}


@given(st.text())
def test_no_text_forges_another_line_or_pair(text: str) -> None:
    line = str(AuditEvent("it.happened", reason=text))
    assert line.isprintable()
    head, _, rest = line.partition(" reason=")
    assert head == "it.happened outcome=success"
    if text:
        assert (json.loads(rest) if rest.startswith('"') else rest) == text


def test_a_broken_receiver_harms_no_other_and_is_logged_once_until_it_works(
    ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    broken = [True]

    def receiver(event: AuditEvent, **kwargs: Any) -> None:
        if broken[0]:
            raise ValueError("broken")

    with connected(receiver):
        for works in (False, False, False, True, False):
            broken[0] = not works
            audit("it.happened")
    assert len(ear.events) == 5
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all("audit receiver failed receiver=" in line for line in lines)
    assert {record.name for record in caplog.records} == {"django_durable_jobs.signals"}


def test_a_receiver_that_is_an_object_may_be_broken_too(
    ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __call__(self, **kwargs: Any) -> None:
            raise ValueError("broken")

    with connected(Broken()):
        audit("it.happened")
    assert "Broken" in caplog.text
    assert ear.actions == ["it.happened"]


def test_a_broken_log_handler_reaches_nobody(
    ear: Ear, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    monkeypatch.setattr(trail.logger, "info", lambda *args, **kwargs: 1 / 0)
    audit("it.happened")
    assert "audit event not told action=it.happened" in caplog.text
    assert ear.actions == ["it.happened"]


def test_a_thread_may_have_its_events_sent_by_another(ear: Ear) -> None:
    put: list[str] = []
    with sent_by(lambda events: put.extend(each.action for each in events)):
        audit("it.happened")
    audit("again")
    assert (put, ear.actions) == (["it.happened"], ["again"])
