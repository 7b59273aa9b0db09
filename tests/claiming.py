"""Claim and settle as a worker does, in a line."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection

from django_durable_jobs import claims
from django_durable_jobs.db import Outcome, Taking, transaction
from django_durable_jobs.models import Execution, Job, Namespace, QueueEntry

TYPE = "test.job"  # what the factories make


def request(**values: Any) -> claims.ClaimRequest:
    """Ask for ten jobs of the factories' type in the default namespace, with no cap."""
    defaults: dict[str, Any] = {
        "namespace": "default",
        "worker": uuid.uuid4(),
        "slots": 10,
        "types": frozenset({TYPE}),
        "lease": 30.0,
    }
    return claims.ClaimRequest(**(defaults | values))


def claim(**values: Any) -> claims.ClaimResult:
    with transaction("default") as own:
        return claims.claim(own, request(**values))


def take(**values: Any) -> list[Job]:
    """Claim, and return the jobs in the order in which they were dealt."""
    return [claimed.job for claimed in claims.load(connection, claim(**values).takings)]


def owners(jobs: Iterable[Job]) -> str:
    return " ".join(job.owner_id for job in jobs)


def outcome(taking: Taking | Job, edge: str = "complete", **values: Any) -> Outcome:
    job_id = taking.job_id if isinstance(taking, Taking) else taking.pk
    claim_id = taking.claim_id
    assert claim_id is not None
    return Outcome(job_id=job_id, claim_id=claim_id, edge=edge, **values)


def settle(outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
    with transaction("default") as own:
        return claims.settle(own, outcomes)


def finish(jobs: Iterable[Job]) -> None:
    settle([outcome(job) for job in jobs])


def digest() -> str:
    """Return a hash over every row that a claim or a settlement may write."""
    rows = [
        list(model.objects.order_by("pk").values_list())
        for model in (Job, QueueEntry, Execution, Namespace)
    ]
    return hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest()


def columns(job: Job) -> dict[str, Any]:
    """Return the job's row as it is now."""
    row: dict[str, Any] = Job.objects.filter(pk=job.pk).values().get()
    return row
