"""Which database errors are nobody's fault, and trying again after them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import DataError, Error, IntegrityError, NotSupportedError, ProgrammingError

T = TypeVar("T")

TRIES = 5

# The first pause in seconds; each further one is twice as long, times a random half to whole.
_PAUSE = 0.02

# PostgreSQL's SQLSTATE: serialization failure, deadlock, lock not available.
_STATES = frozenset({"40001", "40P01", "55P03"})
# MySQL's and MariaDB's errno: record has changed since last read (snapshot isolation), lock wait
# timeout, deadlock, NOWAIT lock not available (MySQL).
_NUMBERS = frozenset({1020, 1205, 1213, 3572})
# SQLite's primary result codes, in the low byte: busy, locked.
_SQLITE = frozenset({5, 6})


def is_transient(error: BaseException | None) -> bool:
    """Tell whether the same transaction, run again, may well succeed: a deadlock, say.

    Judged by SQLSTATE or error number, never by class: servers report the same trouble under
    different classes, and different troubles under one (a JSON that MariaDB refuses is an
    IntegrityError, as a duplicate key is). A lost connection is not meant: what it left behind is
    not known.
    """
    while error is not None:
        if getattr(error, "sqlstate", None) in _STATES:
            return True
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _SQLITE:
            return True
        number = _number(error)
        if number is not None and number in _NUMBERS:
            return True
        error = error.__cause__
    return False


def is_trouble(error: BaseException) -> bool:
    """Tell whether the database could not serve, whatever it was asked; it may when asked again.

    It is gone, restarts, is full or read-only, somebody holds a lock. By elimination: all other
    errors are about the statement or its values.
    """
    about_the_statement = (DataError, IntegrityError, ProgrammingError, NotSupportedError)
    return isinstance(error, Error) and not isinstance(error, about_the_statement)


def is_duplicate(error: BaseException | None) -> bool:
    """Tell whether a unique or primary key was there already."""
    while error is not None:
        if getattr(error, "sqlstate", None) == "23505":
            return True
        # SQLITE_CONSTRAINT_UNIQUE, SQLITE_CONSTRAINT_PRIMARYKEY
        if getattr(error, "sqlite_errorcode", None) in (2067, 1555):
            return True
        if _number(error) == 1062:
            return True
        error = error.__cause__
    return False


def _number(error: BaseException) -> int | None:
    """Return MySQL's error number, which stands first among the arguments."""
    first = error.args[0] if error.args else None
    return first if type(first) is int and len(error.args) > 1 else None


def retrying(
    function: Callable[[], T],
    *,
    tries: int = TRIES,
    sleep: Callable[[float], object] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> T:
    """Call ``function``, a whole transaction, again after a transient error: ``tries`` times.

    The last error is raised, and any other at once.
    """
    pause = _PAUSE
    for _ in range(tries - 1):
        try:
            return function()
        except Exception as error:
            if not is_transient(error):
                raise
        sleep(pause * (0.5 + jitter() / 2))
        pause *= 2
    return function()
