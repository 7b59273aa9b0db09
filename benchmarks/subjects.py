"""Who is measured: how each is started, and how its own timestamps are read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Subject:
    """One job queue. ``worker`` gives its command for (slots, kind of job, with its own lines?).

    ``done`` selects how many jobs have ended, and the seconds from the first start to the last
    end; ``tables`` are emptied before each measurement. ``idle`` is the worker as it is by
    default, None where it has only the other one.
    """

    name: str
    label: str
    package: str
    act: list[str]
    migrate: list[str]
    worker: Callable[[int, str, bool], list[str]]
    idle: list[str]
    tables: str
    done: str

    @property
    def missing(self) -> str:
        """Why this subject cannot be measured here, "" if it can."""
        try:
            self.version  # noqa: B018
        except PackageNotFoundError:
            return f"{self.package} is not installed"
        return ""

    @property
    def version(self) -> str:
        return version(self.package)


def _manage(*args: str) -> list[str]:
    return [sys.executable, "manage.py", *args]


def _span(start: str, end: str) -> str:
    return f"extract(epoch FROM max({end}) - min({start}))::float"


_ACT = [sys.executable, "act.py"]
_FLOOR = [sys.executable, str(FOLDER / "floor.py")]

FLOOR = Subject(
    name="floor",
    label="plain psycopg",
    package="psycopg",
    act=_FLOOR,
    migrate=[*_FLOOR, "migrate"],
    worker=lambda slots, kind, lines: [*_FLOOR, "work", str(slots), kind],
    idle=[*_FLOOR, "listen"],
    tables="floor_job, floor_entry, floor_mark",
    done=f"SELECT count(ended_at), {_span('started_at', 'ended_at')} FROM floor_job",
)
DURABLE = Subject(
    name="durable",
    label="durable-jobs",
    package="django",  # ours is on the path, installed or not
    act=_ACT,
    migrate=_manage("migrate", "--run-syncdb", "-v0"),
    worker=lambda slots, kind, lines: _manage(
        "runscheduler", "--concurrency", str(slots), f"-v{1 if lines else 0}"
    ),
    idle=_manage("runscheduler"),
    tables=(
        "django_durable_jobs_job, django_durable_jobs_queueentry, django_durable_jobs_execution,"
        " load_mark"
    ),
    done=(
        f"SELECT count(completed_at), {_span('started_at', 'completed_at')}"
        " FROM django_durable_jobs_execution"
    ),
)
PROCRASTINATE = Subject(
    name="procrastinate",
    label="Procrastinate",
    package="procrastinate",
    act=_ACT,
    migrate=_manage("migrate", "--run-syncdb", "-v0"),
    worker=lambda slots, kind, lines: _manage(
        "procrastinate", "worker", "--concurrency", str(slots)
    ),
    idle=_manage("procrastinate", "worker"),
    tables="procrastinate_jobs, load_mark",
    done=(
        "SELECT count(*) FILTER (WHERE type = 'succeeded'), extract(epoch FROM"
        " max(at) FILTER (WHERE type = 'succeeded') - min(at) FILTER (WHERE type = 'started')"
        ")::float FROM procrastinate_events"
    ),
)
OX = Subject(
    name="ox",
    label="django-ox",
    package="django-ox",
    act=_ACT,
    migrate=_manage("migrate", "--run-syncdb", "-v0"),
    worker=lambda slots, kind, lines: _manage(
        "ox_worker", "--concurrency", str(slots), f"-v{1 if lines else 0}"
    ),
    idle=_manage("ox_worker"),
    tables="django_ox_oxtask, load_mark",
    done=f"SELECT count(finished_at), {_span('started_at', 'finished_at')} FROM django_ox_oxtask",
)
SUBJECTS = (FLOOR, DURABLE, PROCRASTINATE, OX)
