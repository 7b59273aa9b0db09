"""The worker: one runscheduler process."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..fields import IdentifierField, UTCDateTimeField


class Worker(models.Model):
    """One ``runscheduler`` process; it proves that it lives by its heartbeat.

    ``boot_id``, ``pid_namespace`` and ``process_start`` say whether a pid can be judged from this
    host: only where all three are known and match is a missing process proof of death.
    """

    class Status(models.TextChoices):
        RUNNING = "running", _("running")
        DRAINING = "draining", _("draining")
        STOPPED = "stopped", _("stopped")
        LOST = "lost", _("lost")

    id = models.UUIDField(_("id"), primary_key=True, editable=False)
    namespace = IdentifierField(_("namespace"), max_length=64)
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveBigIntegerField(_("process id"))
    boot_id = models.CharField(_("boot id"), max_length=64, blank=True, default="")
    pid_namespace = models.CharField(_("pid namespace"), max_length=64, blank=True, default="")
    process_start = models.CharField(_("process start"), max_length=32, blank=True, default="")
    started_at = UTCDateTimeField(_("started at"))
    heartbeat_at = UTCDateTimeField(_("heartbeat at"))
    stopped_at = UTCDateTimeField(_("stopped at"), null=True)
    state = models.CharField(
        _("state"), max_length=8, choices=Status.choices, default=Status.RUNNING
    )
    healthy = models.BooleanField(_("healthy"), default=True)
    error = models.TextField(_("error"), blank=True, default="")
    queues = models.JSONField(_("queues"), null=True)  # null: every queue
    excluded_queues = models.JSONField(_("excluded queues"), default=list)
    types = models.JSONField(_("handler types"), default=list)
    concurrency = models.PositiveIntegerField(_("slots"))
    active = models.PositiveIntegerField(_("active jobs"), default=0)
    stuck = models.PositiveIntegerField(_("stuck threads"), default=0)
    version = models.CharField(_("version"), max_length=32, blank=True, default="")

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        indexes = [models.Index(fields=["namespace", "state"], name="ddj_worker_live")]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"
