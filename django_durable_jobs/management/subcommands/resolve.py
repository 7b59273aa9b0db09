"""`durablejobs resolve`: say that interrupted jobs were done after all."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from ...jobs import resolve
from ...states import EDGES
from .jobdeeds import JobCommand
from .scope import login_name


class Command(JobCommand):
    help = "Mark interrupted jobs completed: somebody has found out that they were done after all."
    deed, done = "Resolve", "resolved"
    states = default_states = EDGES["resolve"].sources

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--note", required=True, help="how that is known; is kept with the job")
        parser.add_argument(
            "--by", default=login_name(), help="who says so; default: the login name"
        )

    def act(self, id: UUID, alias: str, options: dict[str, Any]) -> str:
        resolve(id, options["note"], by=options["by"], using=alias)
        return self.done
