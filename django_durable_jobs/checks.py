"""System checks: settings, handlers, and the versions of databases.

The ids are for ever: `durable_jobs.E001` to `E009` are settings' (see `conf`), `E010` to `E019`
handlers', `E020` to `E029` databases'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, connections, router

from . import conf
from .registry import Handler, handlers

__all__ = ["check_databases", "check_handlers", "check_settings"]

TAG = "durable_jobs"
APP = "django_durable_jobs"

REPEAT_WITHOUT_ATTEMPTS = "durable_jobs.E010"
DATABASE_TOO_OLD = "durable_jobs.E020"

# What the claim needs: SKIP LOCKED, and RETURNING on SQLite.
OLDEST = {"SQLite": (3, 35), "MariaDB": (10, 6), "MySQL": (8, 0)}


@register(TAG)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Report each problem of `DURABLE_JOBS`."""
    return [Error(problem.message, hint=problem.hint, id=problem.id) for problem in conf.problems()]


@register(TAG)
def check_handlers(**kwargs: Any) -> list[CheckMessage]:
    """Report handlers whose options contradict each other."""
    return [message for handler in handlers.handlers() for message in _problems_of(handler)]


@register(Tags.database, TAG)
def check_databases(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Refuse databases that are too old; one that cannot be reached is not this check's affair."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        if not router.allow_migrate(alias, APP):
            continue
        try:
            name, version = _version_of(connections[alias])
        except (DatabaseError, InterfaceError, ImproperlyConfigured, OSError):
            continue  # Django says so itself, and better, to whoever needs the connection
        oldest = OLDEST.get(name, ())
        if version < oldest:
            found.append(_too_old(alias, name, version, oldest))
    return found


def _problems_of(handler: Handler) -> Iterator[CheckMessage]:
    if handler.on_interrupt == "requeue" and handler.max_attempts < 2:
        yield Error(
            f"The handler of {handler.type!r} has on_interrupt='requeue' and max_attempts="
            f"{handler.max_attempts}, so an interrupted job would never be run again.",
            hint="Set max_attempts to 2 or more, or leave on_interrupt out.",
            obj=handler.function,
            id=REPEAT_WITHOUT_ATTEMPTS,
        )


def _version_of(connection: Any) -> tuple[str, tuple[int, ...]]:
    """Return the name of the database and its version; () where every version will do."""
    if connection.vendor == "sqlite":
        return "SQLite", tuple(connection.Database.sqlite_version_info)
    if connection.vendor == "mysql":
        return "MariaDB" if connection.mysql_is_mariadb else "MySQL", connection.mysql_version
    return connection.display_name, ()


def _too_old(
    alias: str, name: str, version: tuple[int, ...], oldest: tuple[int, ...]
) -> CheckMessage:
    def dotted(numbers: tuple[int, ...]) -> str:
        return ".".join(str(number) for number in numbers)

    return Error(
        f"The database {alias!r} is {name} {dotted(version)}; accepted: {dotted(oldest)} or later.",
        hint="Upgrade it, or keep the tables of django_durable_jobs in another by a router.",
        id=DATABASE_TOO_OLD,
    )
