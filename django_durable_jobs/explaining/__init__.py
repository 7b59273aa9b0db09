"""Why a job is not running: in a sentence, and as data. Reads only."""

from __future__ import annotations

from asgiref.sync import sync_to_async

from ..lookup import JobRef, missing, pk_of
from ..namespaces import database
from .reading import read
from .taken import active, ended
from .waiting import queued
from .words import CODES, READY, Explanation, Reason

__all__ = ["CODES", "READY", "Explanation", "Reason", "aexplain", "explain"]


def explain(job_id: JobRef, *, using: str | None = None) -> Explanation:
    """Say why a job is not running, or what became of it.

    Judges as a claim does that comes at this moment, by the database's clock, and by the settings
    of this process. Reads only, a bounded number of rows in 12 queries at most (16 on PostgreSQL),
    however many jobs there are. What it tells has nothing of the payload. Raises JobDoesNotExist,
    and InvalidJob for ``using``.
    """
    pk, alias = pk_of(job_id), database(using)
    standing = read(pk, alias) if pk else None
    if standing is None:
        raise missing(job_id, pk)
    first, *others = queued(standing) or active(standing) or ended(standing)
    return Explanation(
        job_id=standing.job.pk,
        type=standing.job.type,
        state=standing.job.state,
        at=standing.now,
        code=first.code,
        facts=first.facts,
        also=tuple(others),
    )


aexplain = sync_to_async(explain)
