"""Reading the jobs that a claim took, of which any may have been edited into nonsense."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import TextField
from django.db.models.functions import Cast

from ..db import Taking
from ..models import Job

_JSON = ("payload", "target", "meta")


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
    texts = {f"{name}_text": Cast(name, TextField()) for name in _JSON}
    rows = (
        Job.objects.using(connection.alias)
        .filter(pk__in=[taking.job_id for taking in takings])
        .defer(*_JSON)
        .annotate(**texts)
    )
    jobs = {job.pk: job for job in rows}
    claimed = []
    for taking in takings:
        job = jobs.get(taking.job_id)
        if job is not None:
            problem = _read_json(job)
            claimed.append(Claimed(job, taking.claim_id, taking.starts, problem))
    return claimed


def _read_json(job: Any) -> str:
    """Fill in the job's JSON fields from their texts; return what is wrong, "" if nothing is.

    What cannot be read is None: a deferred field would be asked for again, and raise.
    """
    problem = ""
    for name in _JSON:
        job.__dict__[name] = None
        try:
            job.__dict__[name] = json.loads(job.__dict__.pop(f"{name}_text"))
        except (ValueError, TypeError, RecursionError) as error:
            problem = problem or (
                f"The job's {name} cannot be read: {error}. Its row was edited by hand."
            )
    target = job.target
    if not problem and not (
        isinstance(target, dict)
        and all(isinstance(target.get(key), str) and target[key].strip() for key in ("kind", "id"))
    ):
        problem = (
            "The job's target is not an object with a kind and an id: its row was edited by hand."
        )
    return problem
