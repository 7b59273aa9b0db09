"""The tables: what a job is, what happened to it, who runs it, when it recurs."""

from .execution import Execution
from .job import Job, JobQuerySet
from .leader import Leader
from .loop import Loop, LoopQuerySet, LoopRecord
from .namespace import Namespace, Overview
from .queue import QueueEntry
from .schedule import Schedule, TickClaim, TickGap
from .worker import Worker

__all__ = [
    "Execution",
    "Job",
    "JobQuerySet",
    "Leader",
    "Loop",
    "LoopQuerySet",
    "LoopRecord",
    "Namespace",
    "Overview",
    "QueueEntry",
    "Schedule",
    "TickClaim",
    "TickGap",
    "Worker",
]
