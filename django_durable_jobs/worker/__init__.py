"""The worker: what ``manage.py runscheduler`` runs, and what a host process may embed."""

from .context import JobContext
from .scheduler import Scheduler

__all__ = ["JobContext", "Scheduler"]
