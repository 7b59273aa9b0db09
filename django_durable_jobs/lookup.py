"""Looking jobs up, and waiting for them. Reads only."""

from __future__ import annotations

import math
import sys
import time
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections

from .conf import settings
from .errors import DurableJobsError, InvalidJob, JobDoesNotExist
from .models import Execution, Job, JobQuerySet
from .namespaces import database
from .parameters import shown
from .states import SETTLED

JobRef: TypeAlias = UUID | str | Job


def get_job(id: JobRef, *, using: str | None = None) -> Job | None:
    """Return the job, None where there is none (also for an id that is no UUID)."""
    job_id = pk_of(id)
    return None if job_id is None else one(job_id, database(using)).first()


def list_jobs(
    *, namespace: str | None = None, using: str | None = None, **filters: Any
) -> JobQuerySet:
    """Return the namespace's jobs as a queryset, filtered as ``filter`` takes it."""
    jobs: JobQuerySet = Job.objects.using(database(using))
    return jobs.filter(namespace=namespace or settings.NAMESPACE, **filters)


def get_receipt(id: JobRef, *, using: str | None = None) -> Any:
    """Return the receipt of the latest execution; None without job, execution or receipt."""
    job_id = pk_of(id)
    if job_id is None:
        return None
    executions = Execution.objects.using(database(using)).filter(job_id=job_id)
    return executions.order_by("-id").values_list("receipt", flat=True).first()


def wait(job: JobRef, timeout: float | timedelta, *, using: str | None = None) -> Job:
    """Block until the job is settled and return it as it is then.

    ``timeout`` is in seconds, or a timedelta; TimeoutError past it, infinity waits for ever.
    Raises at once inside an open transaction (the job could not become visible to a worker),
    InvalidJob for a senseless timeout and JobDoesNotExist where there is no such job.
    """
    seconds, job_id, alias = seconds_of(timeout, "timeout"), pk_of(job), database(using)
    if connections[alias].in_atomic_block:
        raise DurableJobsError(
            "wait() was called inside a transaction: no worker can see the job before it commits.",
            code="in-transaction",
        )
    deadline, pause = time.monotonic() + seconds, 0.005
    while True:
        found = one(job_id, alias).first() if job_id else None
        if found is None:
            raise missing(job, job_id)
        if found.state in SETTLED:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"Job {found.pk} is still {found.state} after {seconds:g} s.")
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.25)


def seconds_of(given: object, field: str) -> float:
    """Return a number of seconds, given as that or as a timedelta; raise InvalidJob otherwise."""
    value = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:  # no NaN
        return float(min(value, sys.float_info.max)) if value < math.inf else math.inf
    problem = f"must be a number of seconds or a timedelta, 0 or more, not {shown(given)}"
    raise InvalidJob(f"{field}: {problem}", field=field, path=field)


def pk_of(id: JobRef) -> UUID | None:
    """Return the id of a job, None where it cannot be one."""
    return id.pk if isinstance(id, Job) else Job.parse_id(id)


def missing(id: JobRef, job_id: UUID | None) -> JobDoesNotExist:
    """Return the error for an id without a job; what is no id at all is shown, and cut."""
    return JobDoesNotExist(job_id=job_id or shown(id))


def one(id: UUID, using: str) -> JobQuerySet:
    """Return the jobs with this id: one or none."""
    jobs: JobQuerySet = Job.objects.using(using)
    return jobs.filter(pk=id)


def _wait_apart(job: JobRef, timeout: float | timedelta, *, using: str | None = None) -> Job:
    """Wait in a thread that is nobody's, and leave no connection behind in it."""
    alias = database(using)
    try:
        return wait(job, timeout, using=alias)
    finally:
        connections[alias].close()


aget_job = sync_to_async(get_job)
aget_receipt = sync_to_async(get_receipt)
# Not thread-sensitive: waiting would hold up every other synchronous call of the caller's.
await_job = sync_to_async(_wait_apart, thread_sensitive=False)
