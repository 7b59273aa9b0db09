"""The admin's pages: looking at jobs, schedules, ticks, loops and workers, and steering them.

Projects with an admin site of their own call ``register(site)``; who wants other base classes or
more columns combines the mixins with a ``ModelAdmin`` and registers that instead. Models of loop
records of a project's own get their pages by ``LoopRecordAdminMixin``.
"""

from __future__ import annotations

from django.contrib import admin

from ..models import Execution, Job, Loop, Overview, Schedule, TickClaim, TickGap, Worker
from .executions import ExecutionAdmin, ExecutionAdminMixin
from .jobs import JobAdmin, JobAdminMixin
from .looprecords import LoopRecordAdminMixin
from .loops import LoopAdmin, LoopAdminMixin
from .overview import OverviewAdmin, OverviewAdminMixin
from .schedules import ScheduleAdmin, ScheduleAdminMixin
from .ticks import TickClaimAdmin, TickClaimAdminMixin, TickGapAdmin, TickGapAdminMixin
from .workers import WorkerAdmin, WorkerAdminMixin

__all__ = [
    "ExecutionAdmin",
    "ExecutionAdminMixin",
    "JobAdmin",
    "JobAdminMixin",
    "LoopAdmin",
    "LoopAdminMixin",
    "LoopRecordAdminMixin",
    "OverviewAdmin",
    "OverviewAdminMixin",
    "ScheduleAdmin",
    "ScheduleAdminMixin",
    "TickClaimAdmin",
    "TickClaimAdminMixin",
    "TickGapAdmin",
    "TickGapAdminMixin",
    "WorkerAdmin",
    "WorkerAdminMixin",
    "register",
]


def register(site: admin.AdminSite) -> None:
    """Register the pages with ``site``."""
    site.register(Overview, OverviewAdmin)
    site.register(Job, JobAdmin)
    site.register(Execution, ExecutionAdmin)
    site.register(Schedule, ScheduleAdmin)
    site.register(TickClaim, TickClaimAdmin)
    site.register(TickGap, TickGapAdmin)
    site.register(Loop, LoopAdmin)
    site.register(Worker, WorkerAdmin)


register(admin.site)
