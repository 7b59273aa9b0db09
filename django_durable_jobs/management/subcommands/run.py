"""`durablejobs run`: the same as `runscheduler`, where a project has a command of that name."""

from ..commands.runscheduler import Command

__all__ = ["Command"]
