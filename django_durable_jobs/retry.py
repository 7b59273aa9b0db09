"""Decide what follows a failed attempt: nothing, or another one after a while.

Nothing is tried again unless its handler declares so. Time, attempts and chance are arguments.
"""

from __future__ import annotations

import math
import random as random_module
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from .strictjson import storable_text

__all__ = [
    "Backoff",
    "Decision",
    "Discard",
    "Retry",
    "RetryPolicy",
    "decide",
    "repeats_interrupted",
]

Seconds = float | timedelta
Backoff = Seconds | Callable[[int, BaseException], Seconds] | None
OnInterrupt = Literal["keep", "requeue"]

LONGEST_DEFAULT = 3_600.0
LONGEST = 366 * 86_400.0


class Retry(Exception):
    """Raise it in a handler to have the job tried again; past its attempts the job fails.

    `after` is a timedelta or seconds; None leaves it to the handler's backoff. The exception
    classes of `retry_on` do not matter here.
    """

    code = "retry"

    def __init__(self, after: Seconds | None = None) -> None:
        super().__init__(after)
        self.after = after

    def __str__(self) -> str:
        return "A retry was asked for" + (
            "." if self.after is None else f" after {_told(self.after)}."
        )


class Discard(Exception):
    """Raise it in a handler to fail the job for good, whatever attempts it has left."""

    code = "discarded"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason) or "The job was discarded."


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Hold what a handler declares about repeating it. Raises TypeError and ValueError.

    `backoff` is a time (timedelta or seconds), a function of the attempt that failed (from 1) and
    its exception that returns one, or None: a random time up to 2, 4, 8, … seconds, an hour at
    most. `on_interrupt` None leaves it to the setting ON_INTERRUPT.
    """

    max_attempts: int = 1
    backoff: Backoff = None
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    on_interrupt: OnInterrupt | None = None

    def __post_init__(self) -> None:
        attempts: object = self.max_attempts
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise ValueError(f"max_attempts is {attempts!r}; accepted: a whole number, at least 1.")
        if self.backoff is not None and not callable(self.backoff):
            _seconds(self.backoff, "backoff")
        given: Any = self.retry_on  # one class alone is understood too
        classes = (given,) if isinstance(given, type) else tuple(given)
        for each in classes:
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                raise TypeError(f"retry_on holds {each!r}; accepted: exception classes.")
        object.__setattr__(self, "retry_on", classes)
        wish: object = self.on_interrupt
        if wish not in (None, "keep", "requeue"):
            raise ValueError(f"on_interrupt is {wish!r}; accepted: 'keep' or 'requeue'.")

    def delay(
        self, attempt: int, exception: BaseException, *, random: Callable[[], float]
    ) -> tuple[float, str]:
        """Return the seconds to wait after this attempt (from 1) failed with this exception.

        `random` returns a number from 0 to 1. A backoff that fails, or returns what is no
        sensible time, gives way to the default: a mistake in it must not lose the job. Returns
        also a note that tells of it, "" where there was none.
        """
        if self.backoff is None:
            return default_delay(attempt, random=random), ""
        try:
            backoff = self.backoff
            value = backoff(attempt, exception) if callable(backoff) else backoff
            return _bounded(value, "backoff")
        except Exception as error:
            note = f"backoff failed, the default was used ({type(error).__name__}: {error})"
            return default_delay(attempt, random=random), note


@dataclass(frozen=True, slots=True)
class Decision:
    """Say what follows a failure: a retry after so many seconds, or (None) the job's failure.

    `code` is of use to programs where the exception has one of its own ("discarded"), else "".
    `note` tells the log of a mistake in the handler's own rule, or of a time that was cut, else "".
    """

    retry_after: float | None = None
    code: str = ""
    note: str = ""


def decide(
    policy: RetryPolicy,
    attempt: int,
    *,
    max_attempts: int | None,
    exception: BaseException,
    random: Callable[[], float] = random_module.random,
) -> Decision:
    """Decide what follows when this attempt (from 1) ended with this exception.

    `max_attempts` is what an operator's requeue granted, None where there was none: it adds to
    the attempts that the policy has left, and takes none away. What was added makes no retries
    where none were declared, unless the handler asks by raising Retry.
    """
    granted = max(policy.max_attempts, max_attempts or 0)
    if isinstance(exception, Discard):
        return Decision(code=Discard.code)
    asked = isinstance(exception, Retry)
    declared = policy.max_attempts > 1 and isinstance(exception, policy.retry_on)
    if attempt >= granted or not (asked or declared):
        return Decision()
    note = ""
    if isinstance(exception, Retry) and exception.after is not None:
        try:
            seconds, note = _bounded(exception.after, "after")
            return Decision(retry_after=seconds, note=note)
        except (TypeError, ValueError) as error:
            note = f"Retry had no sensible time, the backoff was used ({error})"
    seconds, own_note = policy.delay(attempt, exception, random=random)
    return Decision(retry_after=seconds, note="; ".join(filter(None, (note, own_note))))


def repeats_interrupted(
    policy: RetryPolicy, attempt: int, *, max_attempts: int | None, default: str
) -> bool:
    """Tell whether a job whose attempt was interrupted goes back to the queue.

    `default` is the project's ON_INTERRUPT. Not to be asked after an operator's stop.
    """
    granted = max(policy.max_attempts, max_attempts or 0)
    wanted = policy.on_interrupt or default
    return wanted == "requeue" and policy.max_attempts > 1 and attempt < granted


def default_delay(attempt: int, *, random: Callable[[], float]) -> float:
    """Return a random time up to 2 ** attempt seconds, an hour at most ("full jitter")."""
    return random() * min(LONGEST_DEFAULT, 2.0 ** min(max(attempt, 1), 12))


def _bounded(value: object, name: str) -> tuple[float, str]:
    """Return the value as seconds, 366 days at most, and a note where it was cut to these."""
    seconds = _seconds(value, name)
    if seconds <= LONGEST:
        return float(seconds), ""
    return LONGEST, f"{name} is {_told(value)}, cut to 366 days"


def _seconds(value: object, name: str) -> float:
    """Return the value as seconds; TypeError and ValueError say what is wrong."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        kind = type(value).__name__
        raise TypeError(f"{name} is of type {kind}; accepted: a timedelta or seconds.")
    if not 0 <= value < math.inf:  # NaN is refused as well
        raise ValueError(f"{name} is {_told(value)}; accepted: 0 seconds or more.")
    return value


def _told(value: object) -> str:
    """Return the time as messages tell it: a number of hundreds of digits by its size alone."""
    if isinstance(value, int) and abs(value) >= 10**15:
        return f"about {'-' if value < 0 else ''}1e{int(math.log10(abs(value)))}"
    return storable_text(str(value), 100)
