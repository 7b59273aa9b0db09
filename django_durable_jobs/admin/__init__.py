"""The admin's pages: looking at jobs, executions and workers, and steering jobs.

Projects with an admin site of their own call ``register(site)``; who wants other base classes or
more columns combines the mixins with a ``ModelAdmin`` and registers that instead.
"""

from __future__ import annotations

from django.contrib import admin

from ..models import Execution, Job, Worker
from .executions import ExecutionAdmin, ExecutionAdminMixin
from .jobs import JobAdmin, JobAdminMixin
from .workers import WorkerAdmin, WorkerAdminMixin

__all__ = [
    "ExecutionAdmin",
    "ExecutionAdminMixin",
    "JobAdmin",
    "JobAdminMixin",
    "WorkerAdmin",
    "WorkerAdminMixin",
    "register",
]


def register(site: admin.AdminSite) -> None:
    """Register the pages with ``site``."""
    site.register(Job, JobAdmin)
    site.register(Execution, ExecutionAdmin)
    site.register(Worker, WorkerAdmin)


register(admin.site)
