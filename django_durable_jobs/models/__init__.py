"""The tables: what a job is, what happened to it, who runs it, when it recurs."""

from .execution import Execution
from .job import Job, JobQuerySet
from .namespace import Namespace
from .queue import QueueEntry
from .schedule import Schedule, TickClaim, TickGap
from .worker import Worker

__all__ = [
    "Execution",
    "Job",
    "JobQuerySet",
    "Namespace",
    "QueueEntry",
    "Schedule",
    "TickClaim",
    "TickGap",
    "Worker",
]
