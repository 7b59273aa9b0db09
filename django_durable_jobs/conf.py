"""Settings: typed, lazy, and the only reader of `settings.DURABLE_JOBS`.

    from django_durable_jobs.conf import settings

    settings.CONCURRENCY  # 4

A key is read and judged when somebody asks for it, so that this module can be imported before
Django is set up. What a key accepts stands beside its default; `problems()` tells all that is
wrong at once, for the system checks. Durations are given as timedelta or seconds, and are handed
out as float seconds.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Never, Self, TypeVar, cast, overload

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

__all__ = ["Problem", "Settings", "problems", "settings"]

T = TypeVar("T")

SETTING = "DURABLE_JOBS"
HUNDRED_YEARS = 36_525 * 86_400.0

# The numbers of problems, which end up in the ids of checks: never reused, never renumbered.
NOT_A_DICT = 1
UNKNOWN_KEY = 2
WRONG_TYPE = 3
BAD_VALUE = 4
LEASE_TOO_SHORT = 5
WINDOW_TOO_LONG = 6
NOT_IMPORTABLE = 7
UNKNOWN_DATABASE = 8


@dataclass(frozen=True, slots=True)
class Problem:
    """Say what is wrong with one key of `DURABLE_JOBS` ("" for the whole of it), and the cure."""

    key: str
    message: str
    hint: str
    number: int

    @property
    def id(self) -> str:
        """Return the id of the system check: `durable_jobs.E003`."""
        return f"durable_jobs.E{self.number:03}"


class _Refused(Exception):
    """A value was refused, for the problem of this number; the message says why."""

    def __init__(self, message: str, *, number: int) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True, slots=True)
class _Accepts(Generic[T]):
    """Say in words what a key accepts, and turn such a value into what readers are given."""

    words: str
    parse: Callable[[object], T]

    def wrong_type(self, value: object) -> _Refused:
        return _Refused(f"is of type {type(value).__name__}", number=WRONG_TYPE)


def _text(*, at_most: int) -> _Accepts[str]:
    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise accepts.wrong_type(value)
        if not value.strip():
            raise _Refused("is blank", number=BAD_VALUE)
        if len(value) > at_most:
            raise _Refused(f"has {len(value)} characters", number=BAD_VALUE)
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
            raise _Refused("holds control characters", number=BAD_VALUE)
        return value

    accepts = _Accepts(f"text of 1 to {at_most} characters, not blank", parse)
    return accepts


def _texts(container: Callable[[list[str]], T], *, blank: bool) -> _Accepts[T]:
    def parse(value: object) -> T:
        # A lone string is a sequence of letters: the likeliest slip, and never what is meant.
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise accepts.wrong_type(value)
        for item in value:
            if not isinstance(item, str):
                raise _Refused(f"holds {item!r}, which is not text", number=WRONG_TYPE)
            if item.strip() == "" and not (blank and item == ""):
                raise _Refused("holds blank text", number=BAD_VALUE)
        return container(list(value))

    accepts = _Accepts("a list of strings", parse)
    return accepts


def _whole(*, at_least: int) -> _Accepts[int]:
    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise accepts.wrong_type(value)
        if value < at_least:
            raise _Refused(f"is {value}", number=BAD_VALUE)
        return value

    accepts = _Accepts(f"a whole number, at least {at_least}", parse)
    return accepts


def _seconds(*, at_least: float = -math.inf) -> _Accepts[float]:
    def parse(value: object) -> float:
        if isinstance(value, timedelta):
            seconds = value.total_seconds()
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            seconds = float(max(min(value, 1e300), -1e300))  # an int may be too large for a float
        else:
            raise accepts.wrong_type(value)
        if not at_least <= seconds <= HUNDRED_YEARS:  # NaN is refused as well
            raise _Refused(f"is {value!r}", number=BAD_VALUE)
        return seconds

    bound = "" if at_least == -math.inf else f", at least {at_least:g} s"
    accepts = _Accepts(f"a timedelta or a number of seconds{bound}, at most 100 years", parse)
    return accepts


def _flag() -> _Accepts[bool]:
    def parse(value: object) -> bool:
        if not isinstance(value, bool):
            raise accepts.wrong_type(value)
        return value

    accepts = _Accepts("True or False", parse)
    return accepts


def _choice(*choices: str) -> _Accepts[str]:
    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise accepts.wrong_type(value)
        if value not in choices:
            raise _Refused(f"is {value!r}", number=BAD_VALUE)
        return value

    accepts = _Accepts(" or ".join(repr(choice) for choice in choices), parse)
    return accepts


def _or_none(inner: _Accepts[T]) -> _Accepts[T | None]:
    def parse(value: object) -> T | None:
        return None if value is None else inner.parse(value)

    return _Accepts(f"None, or {inner.words}", parse)


def _alias() -> _Accepts[str]:
    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise accepts.wrong_type(value)
        if value not in django_settings.DATABASES:
            raise _Refused(f"is {value!r}, which DATABASES does not have", number=UNKNOWN_DATABASE)
        return value

    accepts = _Accepts("an alias out of DATABASES", parse)
    return accepts


def _flag_or_callable() -> _Accepts[bool | Callable[[], bool]]:
    def parse(value: object) -> bool | Callable[[], bool]:
        if isinstance(value, str):
            try:
                value = import_string(value)
            except ImportError as error:
                raise _Refused(f"cannot be imported ({error})", number=NOT_IMPORTABLE) from error
        if not isinstance(value, bool) and not callable(value):
            raise accepts.wrong_type(value)
        return cast("bool | Callable[[], bool]", value)

    accepts = _Accepts(
        "True, False, a function without arguments, or the dotted path of one", parse
    )
    return accepts


def _folded(names: list[str]) -> tuple[str, ...]:
    return tuple(sorted(name.casefold() for name in names))


class _Key(Generic[T]):
    """Describe one key: its default, as a user would write it, and what it accepts."""

    def __init__(self, default: object, accepts: _Accepts[T]) -> None:
        self.default = default
        self.accepts = accepts
        self.name = ""

    def __set_name__(self, owner: type[Settings], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type[Settings]) -> Self: ...
    @overload
    def __get__(self, instance: Settings, owner: type[Settings]) -> T: ...
    def __get__(self, instance: Settings | None, owner: type[Settings]) -> Self | T:
        return self if instance is None else instance._read(self)

    def __set__(self, instance: Settings, value: Never) -> None:
        raise AttributeError(f"Set {SETTING}[{self.name!r}] in the project's settings instead.")

    def unless(self, given: object, name: str) -> T:
        """Return what a caller gave in place of the setting, None for the setting itself.

        Raises ValueError that names the argument and says what is accepted.
        """
        if given is None:
            return settings._read(self)
        try:
            return self.accepts.parse(given)
        except _Refused as error:
            raise ValueError(f"{name} {error}; accepted: {self.accepts.words}.") from None

    def refuse(self, why: str, *, number: int, wants: str = "") -> Problem:
        """Return the problem that this key has, and what is accepted instead."""
        return Problem(
            key=self.name,
            message=f"{SETTING}[{self.name!r}] {why}; accepted: {wants or self.accepts.words}.",
            hint=f"Leave it out for the default, {self.default!r}.",
            number=number,
        )


class Settings:
    """Hold what the project set, and the defaults for the rest.

    Reading a key that is set wrong raises ImproperlyConfigured with the message of its check.
    Durations are float seconds. Read a key where it is used: tests override settings.
    """

    NAMESPACE = _Key("default", _text(at_most=64))
    DATABASE = _Key(None, _or_none(_alias()))
    CONCURRENCY = _Key(4, _whole(at_least=1))
    GLOBAL_CONCURRENCY = _Key(None, _or_none(_whole(at_least=1)))
    OWNER_CONCURRENCY = _Key(1, _whole(at_least=1))
    UNCAPPED_OWNERS = _Key(("", "local-user"), _texts(frozenset, blank=True))
    MAX_SLEEP = _Key(30, _seconds(at_least=0.01))
    POLL_INTERVAL = _Key(1, _seconds(at_least=0.01))
    LISTEN = _Key(True, _flag())
    HEARTBEAT = _Key(5, _seconds(at_least=0.01))
    LEASE = _Key(30, _seconds(at_least=0.02))
    SHUTDOWN_GRACE = _Key(25, _seconds(at_least=0))
    JOB_TIMEOUT = _Key(None, _or_none(_seconds(at_least=0.01)))
    SCHEDULE_MAX_RUN = _Key(600, _seconds(at_least=0.01))
    ON_INTERRUPT = _Key("keep", _choice("keep", "requeue"))
    RECOVER_UNSTARTED = _Key("interrupt", _choice("interrupt", "requeue"))
    CATCH_UP_WINDOW = _Key(timedelta(hours=1), _seconds(at_least=0))
    TICK_RETENTION = _Key(timedelta(days=7), _seconds())  # 0 or less: ticks are never pruned
    PRUNE_INTERVAL = _Key(60, _seconds(at_least=0.01))
    JOB_RETENTION = _Key(timedelta(days=30), _or_none(_seconds(at_least=0)))  # None keeps all
    LOOP_SYNC_INTERVAL = _Key(60, _seconds(at_least=0.01))
    MULTI_USER = _Key(False, _flag_or_callable())
    AUDIT = _Key(True, _flag())
    # Casefolded, to be looked for inside the casefolded name of a key of a payload.
    MASK = _Key(
        [
            "password",
            "passwd",
            "passphrase",
            "secret",
            "token",
            "api_key",
            "api-key",
            "apikey",
            "private_key",
            "credential",
            "authorization",
            "cookie",
            "signature",
        ],
        _texts(_folded, blank=False),
    )

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def reset(self) -> None:
        """Forget what was read, as when a test overrides settings."""
        # A new dict: a reader that is under way then keeps its old value in the old one.
        self._values = {}

    def problems(self) -> list[Problem]:
        """Return all that is wrong with the project's `DURABLE_JOBS`, in the order of the keys."""
        try:
            given = self._given()
        except _Invalid as error:
            return [error.problem]
        keys = _keys()
        found = [_unknown(name, keys) for name in given if name not in keys]
        for key in keys.values():
            try:
                self._judged(key, given)
            except _Invalid as error:
                found.append(error.problem)
        return found

    def _read(self, key: _Key[T]) -> T:
        values = self._values
        if key.name not in values:
            values[key.name] = self._judged(key, self._given())
        return cast("T", values[key.name])

    def _given(self) -> Mapping[object, object]:
        given = getattr(django_settings, SETTING, {})
        if not isinstance(given, Mapping):
            message = f"{SETTING} is of type {type(given).__name__}; accepted: a dict."
            raise _Invalid(Problem("", message, "Leave it out for the defaults.", NOT_A_DICT))
        return given

    def _judged(self, key: _Key[T], given: Mapping[object, object]) -> T:
        value = self._parsed(key, given)
        self._weigh(key.name, value, given)
        return value

    def _parsed(self, key: _Key[T], given: Mapping[object, object]) -> T:
        try:
            return key.accepts.parse(given.get(key.name, key.default))
        except _Refused as refusal:
            problem = key.refuse(str(refusal), number=refusal.number)
            raise _Invalid(problem) from refusal

    def _weigh(self, name: str, value: Any, given: Mapping[object, object]) -> None:
        """Compare keys that must fit each other; what is wrong with the other is its own fault."""
        cls = type(self)
        try:
            if name == "LEASE" and value < 2 * (beat := self._parsed(cls.HEARTBEAT, given)):
                wants = f"at least two HEARTBEATs ({2 * beat:g} s)"
                problem = cls.LEASE.refuse(f"is {value:g} s", number=LEASE_TOO_SHORT, wants=wants)
            elif (
                name == "CATCH_UP_WINDOW"
                and (kept := self._parsed(cls.TICK_RETENTION, given)) > 0
                and value > kept / 2
            ):
                wants = f"at most half of TICK_RETENTION ({kept / 2:g} s)"
                problem = cls.CATCH_UP_WINDOW.refuse(
                    f"is {value:g} s", number=WINDOW_TOO_LONG, wants=wants
                )
            else:
                return
        except _Invalid:
            return
        raise _Invalid(problem)


class _Invalid(ImproperlyConfigured):
    """What readers of a wrong key get."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def _keys() -> dict[str, _Key[Any]]:
    return {name: key for name, key in vars(Settings).items() if isinstance(key, _Key)}


def _unknown(name: object, keys: Mapping[str, object]) -> Problem:
    near = difflib.get_close_matches(str(name).upper(), keys, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"The keys are {', '.join(sorted(keys))}."
    return Problem(str(name), f"{SETTING} has the unknown key {name!r}.", hint, UNKNOWN_KEY)


settings = Settings()


def problems() -> list[Problem]:
    """Return all that is wrong with `DURABLE_JOBS`: what the system checks report."""
    return settings.problems()


def _on_setting_changed(*, setting: str, **kwargs: object) -> None:
    if setting in (SETTING, "DATABASES"):
        settings.reset()


setting_changed.connect(_on_setting_changed, dispatch_uid="django_durable_jobs.conf")
