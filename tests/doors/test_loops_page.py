"""The page of loop records says what the code does, and its examples run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from django_durable_jobs.loops import sync_loops, type_of
from django_durable_jobs.models import Job, LoopRecord
from django_durable_jobs.registry import handlers

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "loops.md").read_text()


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def words_of(head: str) -> list[str]:
    """Return what is named in the first column of the table with this head."""
    table = PAGE.split(head)[1].split("\n\n")[0]
    rows = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)", row)]


@pytest.fixture
def names(transactional_db: None) -> Iterator[dict[str, Any]]:
    """Offer what the first example declares, as models of the test's app, with tables."""
    declared: dict[str, Any] = {"__name__": "tests.app.examples"}
    models = apps.all_models["testapp"]
    before = dict(models)
    with handlers.preserved():
        try:
            exec(blocks()[0], declared)
            made = [declared[name] for name in ("Report", "Mail")]
            with connection.schema_editor() as editor:
                for model in made:
                    editor.create_model(model)
            yield declared
        finally:
            with connection.schema_editor() as editor:
                for model in made:
                    editor.delete_model(model)
            models.clear()
            models.update(before)
            apps.clear_cache()


def test_every_field_has_a_row() -> None:
    fields = [field.name for field in LoopRecord._meta.get_fields()]
    assert sorted(words_of("| field | what it says |")) == sorted(fields)


def test_every_hook_has_a_row() -> None:
    hooks = words_of("| method | is asked | default |")
    assert sorted(hooks) == [
        *("authorize", "can_run", "get_owner_id", "get_project_id", "prepare", "trigger")
    ]
    assert all(callable(getattr(LoopRecord, name)) for name in hooks)


def test_the_examples_run(names: dict[str, Any]) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    exec(blocks()[1], names | {"timedelta": timedelta, "time": time, "tomorrow": tomorrow})
    report = names["Report"]
    assert Job.objects.filter(type=type_of(report), state="queued").count() == 4
    assert sync_loops(report) == 0
    first = report.objects.get(customer="acme")
    first.trigger(first.prepare(tomorrow))
    assert names["Mail"].objects.get().to == "acme"
