"""Reading the jobs that a claim took, of which any may have been edited into nonsense."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DataError, models
from django.db.backends.base.base import BaseDatabaseWrapper

from ..db import Kind, Statements, Taking, statements_for
from ..fields import UTCDateTimeField
from ..models import Job


def _kind(field: models.Field[Any, Any]) -> Kind:
    if isinstance(field, models.JSONField):
        return "json"
    if isinstance(field, models.UUIDField):
        return "uuid"
    return "time" if isinstance(field, UTCDateTimeField) else ""


# All columns of a job, in the order in which the model takes them.
_COLUMNS = [(field.attname, _kind(field)) for field in Job._meta.concrete_fields]
_JSON = {n: name for n, (name, kind) in enumerate(_COLUMNS) if kind == "json"}
_TARGET = next(n for n, name in _JSON.items() if name == "target")


@dataclass(slots=True)
class Claimed:
    """A job that this process holds; ``unreadable`` says what is wrong with its row."""

    job: Job
    claim_id: uuid.UUID
    started: bool
    unreadable: str = ""

    @property
    def attempt(self) -> int:
        return self.job.attempts


def load(connection: BaseDatabaseWrapper, takings: Sequence[Taking]) -> list[Claimed]:
    """Read the jobs just claimed, in the order given.

    JSON comes as text and is read row by row, so that a row edited into nonsense is told of and
    harms no neighbour.
    """
    names = [name for name, _ in _COLUMNS]
    statements = statements_for(connection)
    ids = [taking.job_id for taking in takings]
    found = {}
    try:
        rows = [(values, "") for values in statements.read_jobs(ids, _COLUMNS)]
    except DataError:
        rows = [row for job_id in ids for row in _read_apart(statements, job_id)]
    for values, unreadable in rows:
        problem = _read_json(values)
        job = Job.from_db(connection.alias, names, values)
        found[job.pk] = job, unreadable or problem
    claimed = []
    for taking in takings:
        if taking.job_id in found:
            job, problem = found[taking.job_id]
            claimed.append(Claimed(job, taking.claim_id, taking.starts, problem))
    return claimed


def _read_apart(statements: Statements, job_id: uuid.UUID) -> Iterator[tuple[list[Any], str]]:
    """Read one job, without its times where Python has no form for one (PostgreSQL's infinity)."""
    try:
        for values in statements.read_jobs([job_id], _COLUMNS):
            yield values, ""
    except DataError as error:
        readable = [column for column in _COLUMNS if column[1] != "time"]
        for values in statements.read_jobs([job_id], readable):
            given = dict(zip((name for name, _ in readable), values, strict=True))
            problem = f"The job's times cannot be read: {error}. Its row was edited by hand."
            yield [given.get(name) for name, _ in _COLUMNS], problem


def _read_json(values: list[Any]) -> str:
    """Put JSON's values in place of its texts; return what is wrong, "" if nothing is.

    What cannot be read is None.
    """
    problem = ""
    for n, name in _JSON.items():
        text, values[n] = values[n], None
        try:
            values[n] = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            problem = problem or (
                f"The job's {name} cannot be read: {error}. Its row was edited by hand."
            )
    target = values[_TARGET]
    if not problem and not (
        isinstance(target, dict)
        and all(isinstance(target.get(key), str) and target[key].strip() for key in ("kind", "id"))
    ):
        problem = (
            "The job's target is not an object with a kind and an id: its row was edited by hand."
        )
    return problem
