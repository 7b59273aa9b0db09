"""There is one migration, and it goes up and down on every database."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest
from django.core.management import call_command
from django.db import connection

from django_durable_jobs import enqueue, migrations
from django_durable_jobs.models import Job, QueueEntry
from tests.databases import subprocess_environment

APP = "django_durable_jobs"


def tables() -> set[str]:
    names = connection.introspection.table_names()
    return {name for name in names if name.startswith(f"{APP}_")}


def constraints() -> set[str]:
    found: set[str] = set()
    for table in tables():
        with connection.cursor() as cursor:
            found |= {
                f"{table}.{name}"
                for name in connection.introspection.get_constraints(cursor, table)
            }
    return found


def test_there_is_exactly_one_migration() -> None:
    names = [module.name for module in pkgutil.iter_modules(migrations.__path__)]
    assert names == ["0001_initial"]
    module = importlib.import_module(f"{APP}.migrations.0001_initial")
    assert module.Migration.dependencies == []


@pytest.mark.django_db(transaction=True)
def test_the_migration_goes_up_and_down_and_up_again() -> None:
    before = (tables(), constraints())
    assert before[0]
    enqueue("x")
    call_command("migrate", APP, "zero", verbosity=0)
    assert tables() == set()
    call_command("migrate", APP, verbosity=0)
    assert (tables(), constraints()) == before
    job = enqueue("x", {"works": True})
    assert Job.objects.get() == job
    assert QueueEntry.objects.get().job == job


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("field", ["AutoField", "BigAutoField"])
def test_no_migration_is_missing_whatever_the_projects_keys(field: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "django", "makemigrations", APP, "--check", "--dry-run"],
        env=subprocess_environment() | {"DDJ_AUTO_FIELD": f"django.db.models.{field}"},
        capture_output=True,
        text=True,
    )
    assert (answer.returncode, answer.stdout) == (0, f"No changes detected in app '{APP}'\n")


@pytest.mark.django_db
def test_every_index_and_constraint_has_a_name_of_ours() -> None:
    """Names that Django makes up differ between its versions; a later migration must find them."""
    for model in (Job, QueueEntry):
        for item in [*model._meta.indexes, *model._meta.constraints]:
            assert item.name.startswith("ddj_")
    assert not any(model._meta.unique_together for model in (Job, QueueEntry))
