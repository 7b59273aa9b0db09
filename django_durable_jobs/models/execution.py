"""The execution: one attempt at a job."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..fields import IdentifierField, UTCDateTimeField
from ..states import ACTIVE, ENDED_AT, ExecutionState, InterruptionReason
from .job import Job
from .worker import Worker


def _one_end() -> Q:
    """An active execution has no end time, an ended one exactly that of its state."""
    none = {f"{column}__isnull": True for column in ENDED_AT.values()}
    condition = Q(state__in=[s.value for s in ACTIVE], **none)
    for state, column in ENDED_AT.items():
        condition |= Q(state=state.value, **{**none, f"{column}__isnull": False})
    return condition


class Execution(models.Model):
    """Record one attempt: by which worker, how far it came, how it ended.

    Every later write is fenced by (``claim_id``, state): whoever no longer holds the claim
    changes nothing. "Latest" is by ``id``, since an attempt number repeats after a release.
    """

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(
        Job,
        models.CASCADE,
        db_constraint=False,  # as for QueueEntry.job
        related_name="executions",
        verbose_name=_("job"),
    )
    namespace = IdentifierField(_("namespace"), max_length=64)
    owner_id = IdentifierField(_("owner"), max_length=256, blank=True)
    attempt = models.PositiveIntegerField(_("attempt"))
    claim_id = models.UUIDField(_("claim id"), editable=False)
    worker = models.ForeignKey(
        Worker,
        models.DO_NOTHING,
        db_constraint=False,  # a worker's row may be pruned before its executions
        db_index=False,
        related_name="executions",
        verbose_name=_("worker"),
    )
    state = IdentifierField(_("state"), max_length=11, choices=ExecutionState.choices)
    lease_expires_at = UTCDateTimeField(_("lease ends at"))
    # Decided at the claim, so that whoever finds the worker dead need not know the handler.
    requeue_on_interrupt = models.BooleanField(_("requeued when interrupted"), default=False)

    claimed_at = UTCDateTimeField(_("claimed at"))
    started_at = UTCDateTimeField(_("started at"), null=True)
    completed_at = UTCDateTimeField(_("completed at"), null=True)
    failed_at = UTCDateTimeField(_("failed at"), null=True)
    interrupted_at = UTCDateTimeField(_("interrupted at"), null=True)
    released_at = UTCDateTimeField(_("released at"), null=True)
    updated_at = UTCDateTimeField(_("updated at"))

    interruption_reason = models.CharField(
        _("interrupted because"),
        max_length=32,
        blank=True,
        default="",
        choices=InterruptionReason.choices,
    )
    error = models.TextField(_("error"), blank=True, default="")
    error_code = models.CharField(_("error code"), max_length=64, blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")
    metadata = models.JSONField(_("metadata"), null=True)
    receipt = models.JSONField(_("receipt"), null=True)
    result = models.JSONField(_("result"), null=True)
    progress = models.JSONField(_("progress"), null=True)

    resolved_at = UTCDateTimeField(_("resolved at"), null=True)
    resolved_by = models.CharField(_("resolved by"), max_length=150, blank=True, default="")
    resolved_note = models.TextField(_("resolution note"), blank=True, default="")

    class Meta:
        verbose_name = _("execution")
        verbose_name_plural = _("executions")
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in ExecutionState]), name="ddj_execution_state"
            ),
            models.CheckConstraint(condition=_one_end(), name="ddj_execution_end"),
        ]
        # Serves "who holds how much" at the claim and "whose lease ran out" in the reaper: the
        # active ones are a short range of it however many have ended.
        indexes = [
            models.Index(fields=["namespace", "state", "owner_id"], name="ddj_execution_active")
        ]

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.attempt}"
