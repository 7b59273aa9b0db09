"""`durablejobs requeue`: put jobs that ended back into the queue."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ...jobs import requeue
from ...states import EDGES
from .jobdeeds import JobCommand


class Command(JobCommand):
    help = "Put failed, interrupted or cancelled jobs back into the queue, for one more attempt."
    deed, done = "Requeue", "requeued"
    states = EDGES["requeue"].sources

    def act(self, id: UUID, alias: str, options: dict[str, Any]) -> str:
        requeue(id, using=alias)
        return self.done
