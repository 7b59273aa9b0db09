"""System checks: settings, handlers, schedules, and the versions of databases.

The ids are for ever: `durable_jobs.E001` to `E009` are settings' (see `conf`), `E010` to `E019`
handlers', `E020` to `E029` databases' and their options', `E030` to `E039` schedules'; a number
has one letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, connections, router

from . import conf
from .db import has_psycopg3
from .enqueueing import spec_of
from .errors import InvalidJob
from .namespaces import database
from .recurrence import Every, lint
from .registry import Declaration, Handler, handlers, schedules
from .ticks.firing import job_of

__all__ = [
    "check_connection",
    "check_databases",
    "check_handlers",
    "check_schedules",
    "check_settings",
]

TAG = "durable_jobs"
APP = "django_durable_jobs"
INSTANT = timedelta(microseconds=1)

REPEAT_WITHOUT_ATTEMPTS = "durable_jobs.E010"
DATABASE_TOO_OLD = "durable_jobs.E020"
OLD_DRIVER = "durable_jobs.W021"
DEFERRED_TRANSACTIONS = "durable_jobs.W022"
NOTHING_TO_RUN = "durable_jobs.E030"
UNKNOWN_JOB = "durable_jobs.E031"
JOB_DOES_NOT_FIT = "durable_jobs.E032"
WINDOW_TOO_LONG = "durable_jobs.E033"
NEVER_FIRES = "durable_jobs.W034"
LIKELY_SLIP = "durable_jobs.I035"

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


@register(TAG)
def check_schedules(**kwargs: Any) -> list[CheckMessage]:
    """Report schedules that have nothing to run, or whose jobs could not be enqueued."""
    found: list[CheckMessage] = [
        Error(
            f"The schedule {name!r} has nothing to run.",
            hint="Give it job= or run=, or put @schedule(...) on a function.",
            id=NOTHING_TO_RUN,
        )
        for name in schedules.unfinished()
    ]
    for declaration in schedules.all():
        found += [*_job_problems(declaration), *_tick_problems(declaration)]
    return found


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


@register(TAG)
def check_connection(**kwargs: Any) -> list[CheckMessage]:
    """Warn of a driver, or of options, with which the jobs' database does less; asks it nothing."""
    try:
        alias = database()
        connection: Any = connections[alias]
    except ImproperlyConfigured:
        return []  # the checks of settings, or Django, say so
    if connection.vendor == "postgresql" and not has_psycopg3(connection):
        return [_old_driver(alias)]
    if connection.vendor == "sqlite" and not connection.is_in_memory_db():
        mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or ""
        if str(mode).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
            return [_deferred(alias)]
    return []


def _problems_of(handler: Handler) -> Iterator[CheckMessage]:
    if handler.on_interrupt == "requeue" and handler.max_attempts < 2:
        yield Error(
            f"The handler of {handler.type!r} has on_interrupt='requeue' and max_attempts="
            f"{handler.max_attempts}, so an interrupted job would never be run again.",
            hint="Set max_attempts to 2 or more, or leave on_interrupt out.",
            obj=handler.function,
            id=REPEAT_WITHOUT_ATTEMPTS,
        )


def _job_problems(declaration: Declaration) -> Iterator[CheckMessage]:
    """Say what a tick would meet when it enqueues the job."""
    name, type = declaration.name, declaration.type
    if handlers.get(type) is None:
        yield Error(
            f"The schedule {name!r} enqueues jobs of type {type!r}, which no handler is "
            "registered for.",
            hint="Declare it by @job in the jobs.py of an installed app, or correct the type.",
            id=UNKNOWN_JOB,
        )
    try:
        spec_of(job_of(declaration, "default", datetime.now(UTC)))
    except InvalidJob as error:
        yield Error(
            f"The schedule {name!r} enqueues jobs of type {type!r} that are not valid: {error}",
            hint="Correct payload= or meta= of the schedule.",
            id=JOB_DOES_NOT_FIT,
        )


def _tick_problems(declaration: Declaration) -> Iterator[CheckMessage]:
    """Say what is odd about the times at which it fires."""
    name, recurrence = declaration.name, declaration.recurrence
    try:
        longest = conf.settings.TICK_RETENTION / 2
    except ImproperlyConfigured:
        longest = 0  # the check of the settings tells
    if 0 < longest < (declaration.catch_up_window or 0):
        yield Error(
            f"The schedule {name!r} has a catch_up_window of {declaration.catch_up_window:g} s; "
            f"accepted: at most half of TICK_RETENTION ({longest:g} s).",
            hint="A tick that is older may be forgotten by then, and would fire again.",
            id=WINDOW_TOO_LONG,
        )
    start, end = declaration.start, declaration.end
    # A plain interval counts from when its row is stored, so its ticks are not known here.
    by_the_clock = not isinstance(recurrence, Every) or recurrence.baseline is not None
    if start and end and by_the_clock and not recurrence.count(start - INSTANT, end, 1)[0]:
        yield Warning(
            f"The schedule {name!r} never fires: no time of its rule is from its start, {start}, "
            f"to its end, {end}.",
            hint="Correct start=, end= or the rule.",
            id=NEVER_FIRES,
        )
    # No warnings: each may be meant, and whoever has warnings fail a build would be stuck. What
    # the next changes of the clocks do to it depends on the day of asking: a preview tells.
    for slip in lint(recurrence, datetime.now(UTC)):
        if slip.code not in ("gap", "overlap"):
            words = f"The schedule {name!r}, {declaration.when}: {slip.message}"
            yield Info(words, id=LIKELY_SLIP)


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


def _old_driver(alias: str) -> CheckMessage:
    return Warning(
        f"The database {alias!r} is reached by psycopg 2. Workers run, but find new jobs by polling"
        " instead of LISTEN, and may wait long for an answer that was lost on its way.",
        hint="Install psycopg 3: pip install 'psycopg[binary]'. Django takes it where it is there.",
        id=OLD_DRIVER,
    )


def _deferred(alias: str) -> CheckMessage:
    return Warning(
        f"The database {alias!r} is SQLite, whose transactions take the write lock only when they"
        " first write: one that has read before (a view that reads and then enqueues) fails with"
        ' "database is locked" if anybody else has written meanwhile, without waiting.',
        hint="Have them take it when they begin:"
        f" DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}.",
        id=DEFERRED_TRANSACTIONS,
    )
