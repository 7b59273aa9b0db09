"""The pytest that starts one for each database: what it shows, ends and returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import databases, suites
from tests.processes.harness import until

Outer = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.processes

PROGRAM = """
import threading

import pytest
from django.db import connection


@pytest.mark.django_db
def test_fails_on_postgres():
    assert connection.vendor != "postgresql"


@pytest.mark.django_db
def test_stands_still(pytestconfig):
    (pytestconfig.rootpath / connection.vendor).touch()
    threading.Event().wait(100)
"""
INI = f"""
[pytest]
DJANGO_SETTINGS_MODULE = tests.settings
addopts = --import-mode=importlib
pythonpath = {databases.ROOT}
"""
OURS = {databases.VARIABLE, suites.ELSEWHERE, "DDJ_DB", "DDJ_VERSION", "DDJ_REQUIRE"}


@pytest.fixture
def outer(tmp_path: Path) -> Iterator[Outer]:
    """Start a pytest with the tests above, on SQLite and PostgreSQL."""
    tmp_path.joinpath("test_them.py").write_text(PROGRAM)
    tmp_path.joinpath("pytest.ini").write_text(INI)
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    die_with_parent = databases.die_with_parent(signal.SIGTERM)

    def ready() -> None:
        die_with_parent()
        # What a shell runs in the background ignores it, and so would these.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", *arguments]
            process = subprocess.Popen(
                [*command, "--db=sqlite,postgres", "test_them.py"],
                env=environment | {"PYTHONPATH": str(databases.ROOT)},
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                preexec_fn=ready,
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            return process

        yield start


def test_each_suite_is_shown_whole_and_the_gravest_code_is_returned(outer: Outer) -> None:
    process = outer("-k", "fails")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    places = [output.index(text) for text in ("1 passed", "1 failed", "tested on: SQLite")]
    assert places == sorted(places), output
    assert output.endswith("failed on postgres (exit code 1)\n")


def test_x_stops_the_other_suites(outer: Outer) -> None:
    process = outer("-x")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "not tested on sqlite: stopped, as another database had failed" in output


def test_an_interrupt_ends_all_suites_in_order(outer: Outer, tmp_path: Path) -> None:
    process = outer()
    both = [tmp_path / "sqlite", tmp_path / "postgresql"]
    until(lambda: all(path.exists() for path in both), "both to stand still")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    # What they say last, when their databases are dropped.
    assert "\n1 passed in" in output
    assert "\n1 failed in" in output
    assert "failed on sqlite (exit code 2)\nfailed on postgres (exit code 2)" in output


def test_what_needs_no_database_is_left_to_another_suite() -> None:
    files = ["tests/rules/test_checks.py", "tests/test_layers.py", "tests/seed/test_seed_map.py"]
    given = {
        databases.VARIABLE: json.dumps(databases.SQLITE | {"NAME": ":memory:"}),
        suites.ELSEWHERE: "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *files],
        env=os.environ | given,
        cwd=databases.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    selected = [line for line in done.stdout.splitlines() if "::" in line]
    assert selected == ["tests/rules/test_checks.py::test_the_database_of_this_suite_is_accepted"]
