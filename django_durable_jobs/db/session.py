"""One connection as the statements see it: running SQL, converting parameters and rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from ..fields import time_for_database
from ..states import State
from .clock import Clock, current_clock

JOB = "django_durable_jobs_job"
ENTRY = "django_durable_jobs_queueentry"
EXECUTION = "django_durable_jobs_execution"
NAMESPACE = "django_durable_jobs_namespace"

# A job stops being held when it starts; one that its second can_run refuses is held on.
NOT_HELD = ", held_since = NULL, held_reason = ''"


def marks(values: Sequence[object]) -> str:
    """Return one placeholder for each value, comma-separated."""
    return ", ".join(["%s"] * len(values))


def in_states(states: Iterable[State]) -> str:
    """Return the states as a list of SQL literals, to stand behind IN."""
    return "(" + ", ".join(f"'{state.value}'" for state in states) + ")"


def as_uuid(value: Any) -> uuid.UUID:
    """Return what a uuid column gave (a UUID, or text) as a UUID."""
    return value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))


class Session:
    """Run statements on one connection, by one clock."""

    # Behind a table's name, so that no statistics (those of an empty table, say) lead the planner
    # away from the index that serves the statement.
    by_turn = " INDEXED BY ddj_queue_turn"
    by_wait = " INDEXED BY ddj_queue_wait"
    by_active = " INDEXED BY ddj_execution_active"

    # The state of an execution that is found by its job: where statistics say that there are few,
    # PostgreSQL would rather look for the state, through the whole of ddj_execution_active.
    filtered_state = "state"

    lock = ""  # behind a SELECT of rows about to be changed; SQLite has locked the whole file
    skip_locked = ""

    def __init__(self, connection: BaseDatabaseWrapper, *, clock: Clock | None = None) -> None:
        self.connection = connection
        self.clock = clock or current_clock()

    # Parameters and rows

    def execute(
        self, sql: str, params: Sequence[Any] | dict[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Run ``sql`` and return its rows (none for a statement that returns none)."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params if isinstance(params, dict) else list(params))
            return cursor.fetchall() if cursor.description else []

    def count(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run ``sql`` and return how many rows it changed."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, list(params))
            return int(cursor.rowcount)

    def key(self, value: uuid.UUID) -> Any:
        """Return ``value`` as this database takes it."""
        return value if self.connection.features.has_native_uuid_field else value.hex

    def keys(self, values: Iterable[uuid.UUID]) -> list[Any]:
        return [self.key(value) for value in values]

    def time(self, value: datetime) -> Any:
        return time_for_database(value, self.connection)

    def settings_kept(self) -> AbstractContextManager[object]:
        """Put back at the end what a claim has set for the transaction that is open around it."""
        return nullcontext()

    @property
    def now(self) -> str:
        return self.clock.sql(self.connection)
