"""The suite's own footing: the database under it, and the servers that it finds or starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests import databases
from tests.app.models import Note


@pytest.mark.django_db(transaction=True)
@pytest.mark.processes
def test_another_process_reaches_the_test_database() -> None:
    Note.objects.create(text="from here")
    program = (
        "import django; django.setup()\n"
        "from tests.app.models import Note\n"
        "print(Note.objects.get().text); Note.objects.create(text='from there')"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=databases.subprocess_environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.strip() == "from here"
    assert set(Note.objects.values_list("text", flat=True)) == {"from here", "from there"}


@pytest.mark.django_db
def test_the_database_is_the_one_that_was_asked_for() -> None:
    vendor = {"sqlite": "sqlite", "postgres": "postgresql", "mariadb": "mysql"}
    assert connection.vendor == vendor[os.environ["DDJ_DB"]]


@pytest.mark.processes
def test_the_embedded_postgres_starts_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DDJ_POSTGRES", "embedded")
    monkeypatch.delenv("DDJ_POSTGRES_URL", raising=False)
    with databases.postgres() as database:
        assert database.version.startswith("PostgreSQL ")
        folder = Path(database.settings["HOST"])
        assert folder.is_dir()
    assert not folder.exists()


def test_a_url_names_a_server_or_a_socket() -> None:
    settings = databases.from_url("postgresql://me:s%40fe@db.example:5433/jobs", "engine")
    assert settings == {
        "ENGINE": "engine",
        "NAME": "jobs",
        "USER": "me",
        "PASSWORD": "s@fe",
        "HOST": "db.example",
        "PORT": "5433",
    }
    settings = databases.from_url("postgresql://me@/jobs?host=/run/sockets", "engine")
    assert (settings["HOST"], settings["PORT"]) == ("/run/sockets", "")


def test_only_databases_of_this_clone_whose_run_is_over_are_stale() -> None:
    mine = f"test_ddj_{databases.checkout()}"
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    assert databases.is_stale(f"{mine}_{over.pid}")
    assert databases.is_stale(f"{mine}_{over.pid}_gw0")
    assert not databases.is_stale(databases.database_name())
    assert not databases.is_stale(f"test_ddj_00000000_{over.pid}")
    assert not databases.is_stale("postgres")
