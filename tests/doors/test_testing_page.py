"""The examples of the page on testing, run as the project that they make up, and the plugin."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from django_durable_jobs import testing

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text()
# Each example says in its first line which file it is.
FILES = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django_durable_jobs", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    for name in ("default", "jobs")
}
MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
"""
INI = """
[pytest]
DJANGO_SETTINGS_MODULE = settings
python_files = tests.py test_*.py
pythonpath = .
filterwarnings = error
addopts = -p no:cacheprovider
"""


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run_pytest(folder: Path, *args: str) -> tuple[dict[str, int], str]:
    """Run pytest in a process of its own; return how many passed, failed, …, and what it said."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DDJ_", "DJANGO_", "PYTEST_"))
    }
    command = [sys.executable, "-m", "pytest", *args]
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    output = ran.stdout + ran.stderr
    last = ran.stdout.strip().splitlines()[-1:] or [""]
    return {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", last[0])}, output


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    project = {"settings.py": SETTINGS, "pytest.ini": INI, "shop/__init__.py": ""}
    counts, output = run_pytest(make(tmp_path, project | dict(FILES)))
    told = sum(len(re.findall(r"^ *(?:async )?def test_", text, re.MULTILINE)) for _, text in FILES)
    assert told >= 9
    assert (counts.get("passed"), "failed" in counts) == (told, False), output


def test_every_parameter_has_a_row_or_is_named() -> None:
    told = PAGE.split("### run_due")[1].split("### run_until")[0]
    rows = re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE)
    assert rows == list(inspect.signature(testing.run_due).parameters)
    assert ["time", *rows, "schedules"] == list(inspect.signature(testing.run_until).parameters)
    assert "schedules=True" in PAGE.split("### Schedules")[1].split("\n### ")[0]
    section = PAGE.split("### assert_enqueued")[1].split("\n## ")[0]
    for name in inspect.signature(testing.assert_enqueued).parameters:
        assert f"`{name}`" in section
    assert not [name for name in testing.__all__ if name[0].islower() and name not in PAGE]


def test_jobs_in_a_database_of_their_own_are_run_there(tmp_path: Path) -> None:
    tests = """
from datetime import timedelta

import pytest
from django.test import TestCase
from django.utils import timezone

from django_durable_jobs import enqueue, register_handler
from django_durable_jobs.models import Job
from django_durable_jobs.testing import (
    assert_enqueued, assert_not_enqueued, captured_jobs, run_due, run_until,
)

register_handler("it", lambda context: context.record_receipt({}) and None, takes_context=True)
register_handler("broken", lambda: Job.objects.using("jobs").create(), atomic=True)


class Tests(TestCase):
    databases = {"default", "jobs"}

    def test_all_of_it(self):
        with captured_jobs() as jobs:
            enqueue("it")
            enqueue("broken")
            enqueue("it", run_at=timezone.now() + timedelta(days=1))
        assert_enqueued("it", count=2)
        assert_not_enqueued(using="default")
        assert [attempt.state for attempt in run_due()] == ["completed", "failed"]
        assert len(run_until(timezone.now() + timedelta(days=2))) == 1
        assert Job.objects.using("jobs").count() == len(jobs) == 3
        assert not Job.objects.using("default").exists()
        enqueue("it", using="default")
        assert run_due() == []
        assert len(run_due(using="default")) == 1


class AloneTests(TestCase):
    databases = {"jobs"}

    def test_the_other_database_is_not_touched(self):
        enqueue("it")
        assert len(run_due(raise_errors=True)) == 1


@pytest.mark.django_db(databases=["default", "jobs"])
def test_the_fixture(durable_jobs):
    enqueue("it")
    assert len(durable_jobs.run_due(raise_errors=True)) == 1
"""
    project = {
        "settings.py": SETTINGS + 'DURABLE_JOBS = {"DATABASE": "jobs"}',
        "pytest.ini": INI,
        "shop/__init__.py": "",
        "shop/tests.py": tests,
    }
    counts, output = run_pytest(make(tmp_path, project))
    assert counts == {"passed": 3}, output


def test_the_clock_of_the_fixture_is_gone_after_the_test(tmp_path: Path) -> None:
    tests = """
from django_durable_jobs.db import DatabaseClock, current_clock


def test_1(durable_jobs):
    durable_jobs.clock()
    durable_jobs.clock()
    assert type(current_clock()) is not DatabaseClock


def test_2(durable_jobs):
    assert type(current_clock()) is DatabaseClock
"""
    project = {
        "settings.py": SETTINGS,
        "pytest.ini": INI,
        "shop/__init__.py": "",
        "test_clock.py": tests,
    }
    counts, output = run_pytest(make(tmp_path, project))
    assert counts == {"passed": 2}, output


@pytest.mark.parametrize("without", [["-p", "no:django"], []])
def test_the_plugin_is_nothing_to_those_who_have_no_django_settings(
    tmp_path: Path, without: list[str]
) -> None:
    tests = """
import sys


def test_of_something_else(request):
    assert request.config.pluginmanager.has_plugin("django_durable_jobs")
    loaded = [name for name in sys.modules if name.startswith("django_durable_jobs")]
    assert sorted(loaded) == ["django_durable_jobs", "django_durable_jobs.pytest_plugin"]
    if not request.config.pluginmanager.has_plugin("django"):
        assert not [name for name in sys.modules if name.split(".")[0] == "django"]
"""
    make(tmp_path, {"pytest.ini": "[pytest]\nfilterwarnings = error\n", "test_it.py": tests})
    counts, output = run_pytest(tmp_path, *without)
    assert counts == {"passed": 1}, output
