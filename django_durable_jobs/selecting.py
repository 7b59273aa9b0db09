"""Choosing jobs by how they stand, and steering them only while they still stand so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import F, QuerySet

from .db import retrying, transaction
from .errors import JobDoesNotExist, WrongState
from .models import Execution, Job, QueueEntry
from .states import ACTIVE, State

T = TypeVar("T")

# How many ids one statement asks for (SQLite of older Pythons binds 999 values).
_PART = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Say which jobs of a namespace are meant; what is None does not matter.

    ``since`` and ``before`` (aware) bound the time that matters in the state: when a queued job
    was put in, a claimed or running one was claimed, any other ended.
    """

    namespace: str
    states: Sequence[State]
    type: str | None = None
    owner_id: str | None = None
    queue: str | None = None
    since: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A job as it was found. ``at`` is the time by which a selection goes, None where it was named
    by its id: then it is steered however it stands.
    """

    id: UUID
    namespace: str
    type: str
    owner_id: str
    state: State
    claim_id: UUID | None = None
    at: datetime | None = None


def select_jobs(selection: Selection, *, limit: int, using: str) -> list[Chosen]:
    """Return the oldest of the jobs that are meant, ``limit`` of them at most.

    Queued jobs and those that were claimed are found by indexes however many there are; nothing
    finds cancelled ones but a look at every job.
    """
    found: list[Chosen] = []
    for state in dict.fromkeys(selection.states):
        rows = _rows(selection, state, using).order_by("job_id" if state != "cancelled" else "pk")
        found += [
            Chosen(id, selection.namespace, type, owner, state, claim, at)
            for id, type, owner, claim, at in rows[:limit]
        ]
    return sorted(found, key=lambda each: each.id.bytes)[:limit]


def jobs_named(ids: Sequence[UUID], *, using: str) -> Iterator[Chosen]:
    """Yield those of the jobs that there are, in any order."""
    columns = ("pk", "namespace", "type", "owner_id", "state")
    for start in range(0, len(ids), _PART):
        rows = Job.objects.using(using).filter(pk__in=ids[start : start + _PART])
        for id, namespace, type, owner, state in rows.values_list(*columns):
            yield Chosen(id, namespace, type, owner, State(state))


def if_unmoved(chosen: Chosen, verb: Callable[[], T], *, using: str) -> T:
    """Call ``verb`` while the job is held still, if it stands as it was chosen.

    One that was settled may have been requeued since, have run, and have come to the same state
    again: that is another end, which nobody has judged yet. Raises JobDoesNotExist, WrongState,
    and what the verb raises.
    """
    if chosen.at is None or chosen.state in (State.QUEUED, *ACTIVE):
        return verb()  # the verb itself compares and sets

    def tried() -> T:
        with transaction(using):
            # Executions before jobs, as everybody locks them.
            if chosen.claim_id is not None:
                executions = Execution.objects.using(using).filter(job_id=chosen.id)
                executions = executions.filter(claim_id=chosen.claim_id)
                list(executions.select_for_update().values_list("pk"))
            rows = Job.objects.using(using).filter(pk=chosen.id).select_for_update()
            row = rows.values_list("state", "claim_id", "finished_at").first()
            if row is None:
                raise JobDoesNotExist(job_id=chosen.id)
            if row != (chosen.state, chosen.claim_id, chosen.at):
                state = State(row[0])
                again = "again" if state == chosen.state else "now"
                raise WrongState(
                    f"It has moved on since it was chosen: it is {state} {again}.",
                    job_id=chosen.id,
                    state=state,
                )
            return verb()

    return retrying(tried)


def _rows(selection: Selection, state: State, using: str) -> QuerySet[Any, Any]:
    """Return rows of id, type, owner, claim and the time that matters."""
    if state == State.QUEUED:
        entries = QueueEntry.objects.using(using).filter(namespace=selection.namespace)
        entries = entries.filter(**_conditions(selection, "", "created_at"))
        none = F("job__claim_id")
        return entries.values_list("job_id", "type", "owner_id", none, "created_at")
    if state == State.CANCELLED:
        jobs = Job.objects.using(using).filter(namespace=selection.namespace, state=state)
        jobs = jobs.filter(**_conditions(selection, "", "finished_at"))
        return jobs.values_list("pk", "type", "owner_id", "claim_id", "finished_at")
    at = "claimed_at" if state in ACTIVE else "job__finished_at"
    executions = Execution.objects.using(using).filter(
        namespace=selection.namespace,
        state=state,
        job__state=state,
        job__claim_id=F("claim_id"),
        **_conditions(selection, "job__", at),
    )
    return executions.values_list("job_id", "job__type", "job__owner_id", "claim_id", at)


def _conditions(selection: Selection, prefix: str, at: str) -> dict[str, Any]:
    wanted = {
        f"{prefix}type": selection.type,
        f"{prefix}owner_id": selection.owner_id,
        f"{prefix}queue": selection.queue,
        f"{at}__gte": selection.since,
        f"{at}__lt": selection.before,
    }
    return {name: value for name, value in wanted.items() if value is not None}
