"""Assertions about what was enqueued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ..conf import Settings
from ..fields import to_utc
from ..models import Job
from ..namespaces import database
from ..registry import Handler, JobFunction, get
from ..strictjson import canonical, normalise
from .clocks import aware

_MOST_SHOWN = 20
_SHOWN_CHARS = 200
_MAX_BYTES = 1 << 20


def assert_enqueued(
    type: str | Handler | JobFunction[..., Any] | None = None,
    payload: Any = None,
    *,
    count: int | None = None,
    owner_id: str | None = None,
    project_id: str | None = None,
    target: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    priority: int | None = None,
    queue: str | None = None,
    run_at: datetime | None = None,
    meta: Mapping[str, Any] | None = None,
    namespace: str | None = None,
    using: str | None = None,
) -> list[Job]:
    """Fail unless such a job was enqueued, whatever became of it; return those that were.

    What is None is not looked at. Of the objects ``payload``, ``target`` and ``meta`` the keys
    given must be there, with these values. ``count`` None is satisfied by one or more.
    """
    wanted = _Wanted(locals())
    __tracebackhide__ = True
    jobs = wanted.candidates()
    found = [job for job in jobs if wanted.fits(job)]
    if len(found) == count or (count is None and found):
        return found
    if count is None:
        told = f"No job was enqueued {wanted}."
    else:
        told = f"Not {count} but {len(found)} of the jobs enqueued {wanted.are}."
    raise AssertionError(told + wanted.listed(jobs, found))


def assert_not_enqueued(
    type: str | Handler | JobFunction[..., Any] | None = None,
    payload: Any = None,
    *,
    owner_id: str | None = None,
    project_id: str | None = None,
    target: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    priority: int | None = None,
    queue: str | None = None,
    run_at: datetime | None = None,
    meta: Mapping[str, Any] | None = None,
    namespace: str | None = None,
    using: str | None = None,
) -> None:
    """Fail if such a job was enqueued, whatever became of it; see ``assert_enqueued``."""
    wanted = _Wanted(locals())
    __tracebackhide__ = True
    jobs = wanted.candidates()
    if found := [job for job in jobs if wanted.fits(job)]:
        many = "A job was" if len(found) == 1 else f"{len(found)} jobs were"
        raise AssertionError(f"{many} enqueued {wanted}." + wanted.listed(jobs, found))


@contextmanager
def captured_jobs(*, using: str | None = None) -> Iterator[list[Job]]:
    """Yield a list that holds, after the block, the jobs that were enqueued in it.

    In their order, of every namespace, as they stand at the end of the block. What was rolled
    back, or was there already for its key, is not among them.
    """
    jobs = Job.objects.using(database(using))
    before = set(jobs.values_list("pk", flat=True))
    captured: list[Job] = []
    yield captured
    captured += [job for job in jobs.order_by("created_at", "pk") if job.pk not in before]


class _Wanted:
    """What a job is compared with."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._jobs = Job.objects.using(database(given["using"]))
        self._namespace = Settings.NAMESPACE.unless(given["namespace"], "namespace")
        about_this_call = ("using", "namespace", "count")
        self._values = {
            name: value
            for name, value in given.items()
            if value is not None and name not in about_this_call
        }
        kind = self._values.get("type")
        kind = kind.handler if isinstance(kind, JobFunction) else kind
        if isinstance(kind, Handler):
            kind = self._values["type"] = kind.type
        handler = get(kind) if isinstance(kind, str) else None
        if handler is not None and "payload" in self._values:
            self._values["payload"] = handler.parameters.encode(self._values["payload"])
        for name in ("payload", "target", "meta"):
            if name in self._values:
                self._values[name] = normalise(self._values[name], name, max_bytes=_MAX_BYTES)
        if "run_at" in self._values:
            self._values["run_at"] = to_utc(aware(self._values["run_at"]))

    def candidates(self) -> list[Job]:
        return list(self._jobs.filter(namespace=self._namespace).order_by("created_at", "pk"))

    def fits(self, job: Job) -> bool:
        return all(_holds(getattr(job, name), value) for name, value in self._values.items())

    def __str__(self) -> str:
        return f"with {self._told()}" if self._values else "at all"

    @property
    def are(self) -> str:
        return f"have {self._told()}" if self._values else "were wanted"

    def _told(self) -> str:
        return ", ".join(_pair(name, value) for name, value in self._values.items())

    def listed(self, jobs: Sequence[Job], found: Sequence[Job]) -> str:
        """Return a line for each job with what was asked for; those that fit are marked."""
        if not jobs:
            return f" No job at all was enqueued in the namespace {self._namespace!r}."
        asked = [name for name in self._values if name not in ("type", "payload", "run_at")]
        lines = [
            "  ".join(
                [
                    "=" if job in found else " ",
                    job.type,
                    *(_pair(name, getattr(job, name)) for name in ("payload", *asked, "run_at")),
                    job.state,
                ]
            )
            for job in jobs[:_MOST_SHOWN]
        ]
        if len(jobs) > _MOST_SHOWN:
            lines.append(f"   … and {len(jobs) - _MOST_SHOWN} more")
        marked = " (= those that fit)" if found else ""
        return "\n".join([f"\nEnqueued were{marked}:", *lines])


def _holds(actual: Any, wanted: Any) -> bool:
    if isinstance(wanted, datetime):
        return bool(actual == wanted)
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return all(
            name in actual and canonical(actual[name]) == canonical(value)
            for name, value in wanted.items()
        )
    return canonical(actual) == canonical(wanted)


def _pair(name: str, value: Any) -> str:
    text = value.isoformat() if isinstance(value, datetime) else repr(value)
    return f"{name}={text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + '…'}"
