"""`durablejobs cancel`: withdraw queued jobs."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from ...errors import JobDoesNotExist
from ...jobs import cancel
from ...states import ACTIVE, State
from .jobdeeds import JobCommand


class Command(JobCommand):
    help = "Cancel queued jobs, by their ids or by how they stand."
    deed, done = "Cancel", "cancelled"
    states = default_states = (State.QUEUED,)

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--reason", help="why; is kept with the job")

    def act(self, id: UUID, alias: str, options: dict[str, Any]) -> str:
        if cancel(id, options["reason"], using=alias) is None:
            raise JobDoesNotExist(job_id=id)
        return self.done

    def hint(self, state: State) -> str:
        return " `durablejobs stop` asks it to stop." if state in ACTIVE else ""
