"""What a namespace stands on: the settings, the database, its tables, its clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from django.apps import apps
from django.db import router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader

from ..conf import settings
from ..db import current_clock
from ..db.engine import Engine, engine_of, lacking_columns
from ..models import Job, LoopRecord
from ..registry import handlers
from .finding import Finding, Severity, line, some, span

# How far this host's clock may be from the database's, in seconds.
SKEW, BAD_SKEW = 2.0, 60.0


def contradictions() -> Iterator[Finding]:
    """Say which settings are each accepted and do not go together."""
    whole, owner = settings.GLOBAL_CONCURRENCY, settings.OWNER_CONCURRENCY
    slots = settings.CONCURRENCY
    if whole is not None and whole < owner:
        text = f"OWNER_CONCURRENCY ({owner}) is more than GLOBAL_CONCURRENCY ({whole})."
        yield Finding("settings", "warning", text, "One owner may take all there is: lower it.")
    if whole is not None and whole < slots:
        text = f"CONCURRENCY ({slots}) is more than GLOBAL_CONCURRENCY ({whole})."
        yield Finding("settings", "warning", text, "Some slots are never used: lower it.")
    repeats = any(handler.max_attempts > 1 for handler in handlers.handlers())
    if settings.ON_INTERRUPT == "requeue" and not repeats:
        text = "ON_INTERRUPT is 'requeue', and no handler here has max_attempts of 2 or more."
        advice = "It does nothing: give max_attempts to handlers that are safe to repeat."
        yield Finding("settings", "warning", text, advice)


def engine(connection: BaseDatabaseWrapper, options: dict[str, Any]) -> Iterator[Finding]:
    """Judge the database; ``options`` are the project's OPTIONS for it."""
    tables = {model._meta.db_table for model in _our_models()}
    found = engine_of(connection, options, tables)
    driver = f", {found.driver}" * bool(found.driver)
    yield Finding("database", "ok", f"{found.name} {found.version}{driver} ({connection.alias}).")
    yield from _engine_warnings(found)


def _engine_warnings(found: Engine) -> Iterator[Finding]:
    if found.journal_mode not in ("", "wal"):
        text = f"SQLite's journal mode is {found.journal_mode}: whoever reads waits for who writes."
        advice = "Add 'init_command': 'PRAGMA journal_mode=WAL' to OPTIONS."
        yield Finding("database", "warning", text, advice)
    if found.strict_isolation:
        text = f"The project's connections are isolated by {found.strict_isolation}."
        advice = (
            "Transactions that enqueue may fail and want to be tried again: READ COMMITTED is"
            " enough for jobs. Workers have that anyway."
        )
        yield Finding("database", "warning", text, advice)
    if found.is_pooled and settings.LISTEN:
        text = f"A pooler stands between: new jobs are found every {settings.POLL_INTERVAL:g} s."
        advice = (
            "In transaction mode LISTEN hears nothing there. Let workers reach PostgreSQL itself"
            " (an alias of its own, --database), or set LISTEN to False."
        )
        yield Finding("database", "warning", text, advice)
    if found.not_innodb:
        text = f"Tables are not kept by InnoDB, without transactions: {some(found.not_innodb)}."
        advice = "ALTER TABLE … ENGINE=InnoDB for each of them, with the workers stopped."
        yield Finding("database", "problem", text, advice)


def tables(connection: BaseDatabaseWrapper) -> Iterator[Finding]:
    """Look for migrations that are not applied, and for columns that are not there."""
    labels = {Job._meta.app_label} | {
        model._meta.app_label
        for model in apps.get_models()
        if issubclass(model, LoopRecord) and router.db_for_write(model) == connection.alias
    }
    try:
        loader = MigrationLoader(connection)
        left = set(loader.graph.nodes) - set(loader.applied_migrations)
    except Exception as error:  # foreign code: the migrations of every app
        text = f"The project's migrations cannot be read: {line(error)}"
        yield Finding("tables", "problem", text, "`manage.py showmigrations` tells more.")
        return
    names = sorted(f"{app}.{name}" for app, name in left if app in labels)
    if names:
        text = f"Migrations are not applied: {some(names)}."
        yield Finding("tables", "problem", text, "Run `manage.py migrate`.")
        return
    wanted = [
        (model._meta.db_table, {field.column for field in model._meta.local_concrete_fields})
        for model in _our_models()
    ]
    lacks = lacking_columns(connection, wanted)
    for table, columns in lacks.items():
        text = f"The table {table} lacks {some(sorted(columns))}."
        advice = "Another release made it: install that one, or migrate an empty database."
        yield Finding("tables", "problem", text, advice)
    if not lacks:
        yield Finding("tables", "ok", "All migrations are applied.")


def clock(connection: BaseDatabaseWrapper, host_clock: Callable[[], datetime]) -> Iterator[Finding]:
    """Compare this host's clock with the database's."""
    before = host_clock()
    database = current_clock().now(connection)
    after = host_clock()
    skew = (database - (before + (after - before) / 2)).total_seconds()
    if abs(skew) < SKEW:
        yield Finding("clock", "ok", "This host's clock and the database's agree.")
        return
    where = "behind" if skew > 0 else "ahead of"
    text = f"This host's clock is {span(abs(skew))} {where} the database's."
    advice = "Jobs and schedules go by the database's, logs by the hosts'. Set all of them by NTP."
    severity: Severity = "problem" if abs(skew) >= BAD_SKEW else "warning"
    yield Finding("clock", severity, text, advice)


def _our_models() -> list[Any]:
    return list(apps.get_app_config(Job._meta.app_label).get_models())
