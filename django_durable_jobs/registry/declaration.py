"""What a schedule is declared to be: validated, comparable, not stored yet."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict
from zoneinfo import ZoneInfo

from ..catchup import CatchUp
from ..errors import InvalidJob, InvalidRecurrence, InvalidSchedule
from ..jobspec import JobSpec, moment
from ..parameters import shown
from ..recurrence import Cron, Every
from ..strictjson import Json, canonical
from .handler import identifier

Overlap: TypeAlias = Literal["skip", "queue", "allow"]

NAME_MAX_CHARS: Final = 200
_LONGEST = 366 * 86_400.0


class ScheduleOptions(TypedDict, total=False):
    """The options of every schedule: when it fires, and what becomes of its ticks."""

    cron: str | None
    every: float | timedelta | None
    baseline: str | time | None
    timezone: str | ZoneInfo | None
    start: datetime | None
    end: datetime | None
    jitter: float | timedelta
    overlap: Overlap
    catch_up: CatchUp
    catch_up_window: float | timedelta | None
    max_run: float | timedelta | None
    pause_after_failures: int | None


class JobOptions(TypedDict, total=False):
    """What the jobs of a schedule are enqueued with; `enqueue` has the same."""

    payload: Any
    owner_id: str
    project_id: str
    target: Mapping[str, Any] | None
    priority: int | None
    queue: str | None
    meta: Mapping[str, Any] | None


class JobScheduleOptions(ScheduleOptions, JobOptions, total=False):
    """The options of a schedule that enqueues a declared job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Hold a schedule as the code declares it.

    `type` is that of the job which a tick enqueues. Durations are seconds; None stands for the
    setting. `start` and `end` are aware, in UTC, and bound the nominal times, both inclusive.
    `via_job` tells a schedule of a declared job from one with a function of its own.
    """

    name: str
    recurrence: Cron | Every
    type: str
    via_job: bool
    payload: Any = field(default_factory=dict, repr=False)
    owner_id: str = ""
    project_id: str = "default"
    target: Mapping[str, Json] | None = field(default=None, repr=False)
    priority: int | None = None
    queue: str | None = None
    meta: Mapping[str, Json] | None = field(default=None, repr=False)
    overlap: Overlap = "skip"
    catch_up: CatchUp = "none"
    catch_up_window: float | None = None
    jitter: float = 0.0
    start: datetime | None = None
    end: datetime | None = None
    max_run: float | None = None
    pause_after_failures: int | None = None
    # Tells a reloaded module from another schedule of the same name.
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def __hash__(self) -> int:
        return hash((self.name, self.type))

    @property
    def kind(self) -> Literal["cron", "every"]:
        return "cron" if isinstance(self.recurrence, Cron) else "every"

    @property
    def when(self) -> str:
        """Return the recurrence in words."""
        return self.recurrence.describe()

    @property
    def timezone(self) -> str:
        """Return the name of its time zone: the project's, where none was given."""
        return self.recurrence.zone.key

    @property
    def rule(self) -> str:
        """Return all that moves ticks, as JSON: an edit is seen by it, `read_rule` reads it.

        A plain interval has the same ticks in every time zone, so the zone is not part of its.
        """
        rule: dict[str, Json]
        if isinstance(self.recurrence, Cron):
            rule = {"cron": self.recurrence.expression, "timezone": self.timezone}
        else:
            rule = {"every": _microseconds(self.recurrence.interval)}
            if self.recurrence.baseline is not None:
                rule |= {"baseline": self.recurrence.baseline, "timezone": self.timezone}
        bounds = {"start": self.start, "end": self.end}
        return canonical(rule | {name: each.isoformat() for name, each in bounds.items() if each})


def read_rule(text: str) -> tuple[Cron | Every, datetime | None]:
    """Return the recurrence that a `Declaration.rule` says, and its end, if it has one.

    Raises ValueError for any other text, and where this process knows no such time zone.
    """
    try:
        rule: dict[str, Any] = json.loads(text)
        end = datetime.fromisoformat(rule["end"]) if "end" in rule else None
        if "cron" in rule:
            return Cron(rule["cron"], rule["timezone"]), end
        interval = timedelta(microseconds=rule["every"])
        return Every(interval, rule.get("baseline"), rule.get("timezone")), end
    except (LookupError, OverflowError, TypeError) as error:
        raise ValueError(f"{shown(text)} is no rule of a schedule.") from error


def name_of_schedule(name: object) -> str:
    """Return the name as given; raise InvalidSchedule where it cannot be one."""
    try:
        return str.__str__(identifier(name, "name", at_most=NAME_MAX_CHARS))
    except (TypeError, ValueError) as error:
        raise InvalidSchedule(f"A schedule's {error}") from None


def timing(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what these `ScheduleOptions` come to, as values of a `Declaration`.

    Raises InvalidSchedule or InvalidRecurrence.
    """
    recurrence = _recurrence(name, options)
    start, end = (_bound(name, options, which) for which in ("start", "end"))
    if start is not None and end is not None and end < start:
        raise refusal(name, f"end ({end}) is before start ({start}); accepted: start or later.")
    return {
        "recurrence": recurrence,
        "start": start,
        "end": end,
        "jitter": _jitter(name, options, recurrence),
        "overlap": _choice(name, options, "overlap", ("skip", "queue", "allow")),
        "catch_up": _choice(name, options, "catch_up", ("none", "last", "all")),
        "catch_up_window": _duration(name, options, "catch_up_window", at_least=0),
        "max_run": _duration(name, options, "max_run", at_least=0.01),
        "pause_after_failures": _failures(name, options),
    }


def job_values(name: str, type: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return type and `JobOptions` as values of a `Declaration`, copied.

    The payload is judged where the handler is known for sure: by the system check, and at each
    tick. Raises InvalidSchedule.
    """
    given = {each: options[each] for each in JobOptions.__annotations__ if each in options}
    try:
        payload = copy.deepcopy(given.pop("payload", {}))
    except Exception as error:  # foreign code: __deepcopy__
        raise refusal(name, f"payload cannot be copied ({error}); accepted: JSON.") from error
    judged = {each: value for each, value in given.items() if value is not None or _needed(each)}
    try:
        spec = JobSpec(namespace="default", type=type, **judged)
    except InvalidJob as error:
        problem = str(error)
        if error.field == "type":
            problem = f"job{problem.removeprefix('type')}"
        raise refusal(name, problem) from error
    values = {each: getattr(spec, each) for each in judged}
    return {"type": spec.type, "payload": payload, **values}


def refuse_job_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidSchedule for options that only a schedule of a declared job has."""
    if found := [each for each in JobOptions.__annotations__ if each in options]:
        raise refusal(
            name,
            f"{found[0]} goes with a declared job; accepted: job=, or @schedule on top of @job.",
        )


def refusal(name: str, problem: str) -> InvalidSchedule:
    """Return the error that says what is wrong with the schedule of this name."""
    return InvalidSchedule(f"The schedule {name!r}: {problem}")


def _needed(option: str) -> bool:
    return option in ("owner_id", "project_id")


def _microseconds(interval: timedelta) -> int:
    return interval // timedelta(microseconds=1)


def _recurrence(name: str, options: Mapping[str, Any]) -> Cron | Every:
    cron, every = options.get("cron"), options.get("every")
    baseline, timezone = options.get("baseline"), options.get("timezone")
    if (cron is None) == (every is None):
        found = "neither cron nor every" if cron is None else "both cron and every"
        raise refusal(name, f"has {found}; accepted: exactly one of them.")
    if cron is not None and baseline is not None:
        raise refusal(name, "has a baseline, which goes with every, not with cron.")
    try:
        if cron is not None:
            return Cron(cron, timezone)
        return Every(options["every"], baseline=baseline, timezone=timezone)
    except InvalidRecurrence as error:
        message = f"The schedule {name!r}: {error}"
        raise InvalidRecurrence(message, code=error.code) from error


def _bound(name: str, options: Mapping[str, Any], which: str) -> datetime | None:
    value = options.get(which)
    try:
        return None if value is None else moment(value, which, column=f"Schedule.{which}")
    except InvalidJob as error:
        raise refusal(name, str(error)) from error


def _jitter(name: str, options: Mapping[str, Any], recurrence: Cron | Every) -> float:
    seconds = _duration(name, {"jitter": 0, **options}, "jitter", at_least=0)
    if seconds == 0:
        return 0.0
    if seconds is None:
        raise refusal(name, "jitter is None; accepted: a timedelta or seconds, 0 for none.")
    if seconds >= (shortest := recurrence.shortest_step.total_seconds()):
        wants = f"less than the shortest time between two ticks ({shortest:g} s)"
        raise refusal(name, f"jitter is {seconds:g} s; accepted: {wants}.")
    return seconds


def _duration(
    name: str, options: Mapping[str, Any], which: str, *, at_least: float
) -> float | None:
    value = options.get(which)
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    fits = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not fits or not at_least <= seconds <= _LONGEST:
        wants = f"a timedelta or seconds, at least {at_least:g}, at most a year"
        raise refusal(name, f"{which} is {shown(value)}; accepted: {wants}.")
    return float(seconds)


def _choice(name: str, options: Mapping[str, Any], which: str, accepted: tuple[str, ...]) -> str:
    value = options.get(which, accepted[0])
    if not isinstance(value, str) or value not in accepted:
        words = ", ".join(f'"{each}"' for each in accepted)
        raise refusal(name, f"{which} is {shown(value)}; accepted: {words}.")
    return value


def _failures(name: str, options: Mapping[str, Any]) -> int | None:
    value = options.get("pause_after_failures")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
        wants = "a whole number, 1 to 1,000,000, or None"
        raise refusal(name, f"pause_after_failures is {shown(value)}; accepted: {wants}.")
    return value
