"""The command's own words: what it refuses, and with which exit code."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_durable_jobs.management.commands.runscheduler import Command

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "--concurrency must be at least 1."),
        ({"grace": -1.0}, "--grace must be 0 or more seconds."),
        ({"queues": "a", "exclude_queues": "b"}, "Give --queues or --exclude-queues, not both."),
        ({"database": "nosuch"}, "There is no database 'nosuch' in DATABASES."),
    ],
)
def test_wrong_usage_is_refused_with_code_2(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("runscheduler", **options)
    assert str(refused.value) == message
    assert refused.value.returncode == 2


def test_a_database_without_our_tables_is_told_to_be_migrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection.introspection, "table_names", lambda: ["auth_user"])
    with pytest.raises(CommandError, match=r"has no tables for jobs: run `manage\.py migrate`"):
        call_command("runscheduler")


def test_the_database_check_is_asked_about_the_jobs_own_database() -> None:
    options = {"database": None, "skip_checks": False}
    assert Command().get_check_kwargs(options)["databases"] == ["default"]
