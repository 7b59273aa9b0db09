"""Reaching the database when a worker is started: it may be away, as it may at any later time."""

from __future__ import annotations

import os
import time

from django.core.management.base import CommandError
from django.db import Error

from ..conf import settings
from ..db import own_connections
from ..insight import leading, no_tables
from ..models import Job
from ..worker.stopping import LISTEN_EVERY, Stopper
from ..worker.terminal import Terminal
from ..worker.trouble import Backoff, Trouble, is_refusal, one_line


class Reaching:
    """Wait until a database answers, and tell what it is waited for; a ``burst`` does not wait."""

    def __init__(self, alias: str, *, stopper: Stopper, terminal: Terminal, burst: bool) -> None:
        self._alias = alias
        self._stopper = stopper
        self._terminal = terminal
        self._burst = burst
        self._trouble = Trouble(f"process {os.getpid()}")

    def tables(self) -> list[str] | None:
        """Return the names of the database's tables; None where somebody asked for the end first.

        Raises CommandError where it will not let us in, however long we wait.
        """
        backoff, waits = Backoff(), False
        while not self._stopper.asked:
            try:
                # Outside of any pool, and with a limit to each attempt.
                with own_connections(self._alias, lease=settings.LEASE) as connection:
                    tables = connection.introspection.table_names()
            except Error as error:
                if self._burst or is_refusal(error):
                    text = f"The database {self._alias!r} cannot be reached: {one_line(error)}"
                    raise CommandError(text) from error
                self._tell(error, first=not waits)
                waits = True
                self._pause(backoff.next())
            else:
                self._trouble.over("start")
                return tables
        return None

    def has_our_tables(self) -> bool:
        """Tell whether to go on: not where somebody asked for the end.

        Raises CommandError where the tables are missing, and as ``tables`` does.
        """
        tables = self.tables()
        if tables is not None and Job._meta.db_table not in tables:
            raise CommandError(no_tables(self._alias))
        return tables is not None

    def leader(self, namespace: str) -> str | None:
        """Return where the worker runs that leads; None where nobody does, or nobody can tell."""
        try:
            with own_connections(self._alias, lease=settings.LEASE):
                return leading(namespace, self._alias)
        except Error:  # away again: whoever works finds out
            return None

    def _tell(self, error: Error, *, first: bool) -> None:
        if first:
            text = f"The database {self._alias!r} cannot be reached: waiting for it."
            self._terminal.say("unreachable", text, kind="WARNING", database=self._alias)
        if self._trouble.failed("start", error):
            self._terminal.troubled(one_line(error))

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopper.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LISTEN_EVERY))
