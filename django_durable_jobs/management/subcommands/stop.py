"""`durablejobs stop`: ask running jobs to stop."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from ...errors import JobDoesNotExist
from ...jobs import request_stop
from ...states import ACTIVE, State
from .jobdeeds import JobCommand


class Command(JobCommand):
    help = "Ask claimed and running jobs to stop; queued ones are cancelled."
    deed, done = "Stop", "asked to stop"
    states = (*ACTIVE, State.QUEUED)
    default_states = ACTIVE

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--reason", help="why; is kept with the job")

    def act(self, id: UUID, alias: str, options: dict[str, Any]) -> str:
        job = request_stop(id, options["reason"], using=alias)
        if job is None:
            raise JobDoesNotExist(job_id=id)
        return "cancelled" if job.state == State.CANCELLED else self.done
