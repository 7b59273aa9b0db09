"""What is wrong with a namespace and with what it stands on, how bad that is, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..conf import problems, settings
from ..db import own_connections
from ..insight import lacks_tables, no_tables, status
from ..jobspec import namespace_name
from ..namespaces import database
from . import ground, load, service
from .finding import Finding, Patient, Severity, line, unreadable

__all__ = ["Finding", "Severity", "examine"]


def examine(
    namespace: str | None = None,
    *,
    using: str | None = None,
    max_age: float | None = None,
    host_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Finding]:
    """Look at the settings, the database, its tables and a namespace in them; reads alone.

    ``max_age`` (in seconds) makes a problem of a job that has been due for longer; without it one
    that has been due for five minutes is a warning. Never raises for what the database does or
    lacks: what depends on that is left out. Raises InvalidJob for its arguments.
    """
    if wrong := problems():  # every other answer would depend on them
        return [Finding("settings", "problem", each.message, each.hint) for each in wrong]
    name = settings.NAMESPACE if namespace is None else namespace_name(namespace)
    alias = database(using)
    found = list(ground.contradictions()) or [Finding("settings", "ok", "They fit each other.")]
    options: dict[str, Any] = connections[alias].settings_dict["OPTIONS"]
    try:
        # It waits for no answer for longer than a worker would.
        with own_connections(alias, lease=settings.LEASE) as connection:
            try:
                connection.ensure_connection()
            except Exception as error:  # foreign code: the driver, and what OPTIONS have it do
                found.append(_away(alias, error))
                return found
            found += _safely("database", partial(ground.engine, connection, options))
            found += _in_database(connection, name, max_age, host_clock)
    except Error as error:  # gone in the middle of it
        found.append(_away(alias, error))
    return found


def _away(alias: str, error: Exception) -> Finding:
    text = f"The database {alias!r} cannot be reached: {line(error)}"
    advice = "Workers wait for it, and go on by themselves. See whether it runs, and DATABASES."
    return Finding("database", "problem", text, advice)


def _in_database(
    connection: BaseDatabaseWrapper,
    namespace: str,
    max_age: float | None,
    host_clock: Callable[[], datetime],
) -> Iterator[Finding]:
    if lacks_tables(connection.alias):
        yield Finding("tables", "problem", no_tables(connection.alias))
        return
    yield from _safely("tables", partial(ground.tables, connection))
    yield from _safely("clock", partial(ground.clock, connection, host_clock))
    try:
        patient = Patient(connection, namespace, status(namespace, using=connection.alias))
    except (Error, ValueError) as error:
        yield unreadable("status", error)
        return
    looks: dict[str, Callable[[], Iterable[Finding]]] = {
        "workers": partial(service.workers, patient),
        "leader": partial(service.leader, patient),
        "pause": partial(service.pause, patient),
        "schedules": partial(service.schedule, patient),
        "queue": partial(load.queue, patient, max_age),
        "interrupted": partial(load.interrupted, patient),
        "loops": partial(load.loops, patient),
    }
    for code, look in looks.items():
        yield from _safely(code, look)


def _safely(code: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what is found; that it could not be looked at, where the database refuses or a row
    was edited by hand into something unreadable.
    """
    found: list[Finding] = []
    try:
        found.extend(look())
    except (Error, ValueError) as error:
        found.append(unreadable(code, error))
    return found
