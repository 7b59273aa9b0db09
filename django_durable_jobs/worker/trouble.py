"""Trouble with the database: telling the log of it without flooding it, and not hammering on."""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable
from uuid import UUID

from ..db import is_trouble

logger = logging.getLogger(__name__)

# How many seconds lie between two lines of one worker, and until the same is said again.
BETWEEN_LINES = 1.0
SAID_AGAIN = 60.0
# After a failure: the first pause and the longest, in seconds. A worker whose database is back
# finds that out after the longest at the latest.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

# How servers and libraries say that they will not let this project in, however often it asks.
# PostgreSQL's have no code that a client is told, only words.
_REFUSED_BY_MYSQL = {1044, 1045, 1049, 1698}  # no such user, password, database
_REFUSED_BY_SQLITE = {3, 11, 14, 23, 26}  # SQLITE_PERM, _CORRUPT, _CANTOPEN, _AUTH, _NOTADB
_REFUSED_BY_POSTGRESQL = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry"
    r"|(?:database|role) \".*\" does not exist|not permitted to log in"
)


class Trouble:
    """What goes wrong in a worker's threads, as one log that stays readable.

    Each thread says what of its own fails, every time, and that it works again. What is new is
    logged, at most one line a second; what stays the same, once a minute.
    """

    def __init__(self, worker: UUID | str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._worker = worker
        self._now = now
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}
        self._said: dict[str, tuple[str, float]] = {}
        self._line_at = -BETWEEN_LINES

    def failed(self, what: str, error: BaseException) -> bool:
        """Take note that ``what`` failed; tell whether that was logged."""
        text, now = one_line(error), self._now()
        with self._lock:
            self._since.setdefault(what, now)
            said, at = self._said.get(what, ("", 0.0))
            if now < self._line_at + BETWEEN_LINES or (said == text and now < at + SAID_AGAIN):
                return False
            self._said[what] = text, now
            self._line_at = now
        # Where the database is the trouble, a traceback says nothing that its text does not.
        trace = None if is_trouble(error) else error
        logger.error("%s failed worker=%s error=%s", what, self._worker, text, exc_info=trace)
        return True

    def over(self, what: str) -> None:
        """Take note that ``what`` works, or works again."""
        if what not in self._since:
            return
        with self._lock:
            since = self._since.pop(what, self._now())
            said = self._said.pop(what, None)
        if said is not None:
            seconds = self._now() - since
            logger.warning("%s works again worker=%s after=%.1fs", what, self._worker, seconds)


class Backoff:
    """Pauses that grow until ``reset``, each a random half to whole, so that workers spread."""

    def __init__(
        self,
        first: float = FIRST_PAUSE,
        longest: float = LONGEST_PAUSE,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._first = self._next = first
        self._longest = longest
        self._jitter = jitter

    def next(self) -> float:
        """Return how many seconds to pause now."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * (0.5 + self._jitter() / 2)

    def reset(self) -> None:
        """Start again from the first pause."""
        self._next = self._first


def is_refusal(error: Exception) -> bool:
    """Tell whether this is how a database refuses a connection that no waiting will bring about.

    Wrong names and passwords; and what is no trouble at all but an error of the settings'.
    """
    if not is_trouble(error):
        return True
    cause = error.__cause__ or error
    if (code := getattr(cause, "sqlite_errorcode", None)) is not None:
        return code & 0xFF in _REFUSED_BY_SQLITE
    if cause.args and cause.args[0] in _REFUSED_BY_MYSQL:
        return True
    return _REFUSED_BY_POSTGRESQL.search(str(cause)) is not None


def one_line(error: BaseException) -> str:
    """Return the error's class and text; drivers like to add hints on lines of their own."""
    return " ".join(f"{type(error).__name__}: {error}".split())
