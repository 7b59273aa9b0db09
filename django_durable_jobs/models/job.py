"""The job: one piece of work to be done once."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..fields import IdentifierField, JSONValueField, UTCDateTimeField
from ..states import EDGES, SETTLED, UNCLAIMED, HeldReason, State


class JobQuerySet(models.QuerySet["Job"]):
    """Jobs, and the one way by which the ORM moves them between states."""

    def move(self, edge: str, /, **values: Any) -> int:
        """Move the jobs of this query along ``edge``; return how many moved.

        A compare-and-set: what is not in one of the edge's sources stays as it is. Filter by the
        row's own columns only (and by claim id where there is one): Django rewrites an UPDATE
        whose filter crosses a join into ``pk IN (SELECT …)``, which guards nothing under READ
        COMMITTED. An edge that is not in ``states.EDGES`` raises KeyError.
        """
        way = EDGES[edge]
        return self.filter(state__in=way.sources).update(state=way.target, **values)


class Job(models.Model):
    """One piece of work to be done once: which handler, with what, about what, for whom, when.

    Rows are written by the verbs in ``enqueueing``, ``jobs`` and ``claims`` only. A job is queued
    if and only if it has a ``QueueEntry``; its attempts are its ``Execution`` rows.
    """

    id = models.UUIDField(_("id"), primary_key=True, editable=False)
    namespace = IdentifierField(_("namespace"), max_length=64)
    queue = IdentifierField(_("queue"), max_length=64)
    type = IdentifierField(_("type"), max_length=256)
    idempotency_key = IdentifierField(_("idempotency key"), max_length=256)
    # SHA-256 of the key; emptied at settlement where key_scope is "live", which frees the key.
    key_hash = models.CharField(max_length=64, null=True, editable=False)  # noqa: DJ001
    key_scope = models.CharField(_("key scope"), max_length=4, default="ever")
    owner_id = IdentifierField(_("owner"), max_length=256, blank=True, default="")
    project_id = IdentifierField(_("project"), max_length=256, default="default")
    target = models.JSONField(_("target"))
    target_kind = IdentifierField(_("target kind"), max_length=256)
    target_id = IdentifierField(_("target id"), max_length=256)
    payload = JSONValueField(_("payload"))
    meta = models.JSONField(_("meta"), default=dict)
    fingerprint = models.CharField(max_length=64, editable=False)

    priority = models.SmallIntegerField(_("priority"), default=0)
    run_at = UTCDateTimeField(_("run at"))
    claimable_at = UTCDateTimeField(_("claimable from"))
    held_since = UTCDateTimeField(_("held since"), null=True)
    held_reason = models.CharField(
        _("held because"), max_length=12, blank=True, default="", choices=HeldReason.choices
    )

    # An identifier, so that the CHECK refuses "QUEUED" on every database.
    state = IdentifierField(_("state"), max_length=11, choices=State.choices, default=State.QUEUED)
    claim_id = models.UUIDField(_("claim id"), null=True, editable=False)
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    # What an operator's requeue granted; null: as many as the handler declares.
    max_attempts = models.PositiveIntegerField(_("attempts granted"), null=True)
    timeout = models.FloatField(_("time limit in seconds"), null=True)
    stop_requested_at = UTCDateTimeField(_("stop requested at"), null=True)
    cancelled_reason = models.TextField(_("cancelled because"), null=True)  # noqa: DJ001

    created_at = UTCDateTimeField(_("created at"))
    updated_at = UTCDateTimeField(_("updated at"))
    finished_at = UTCDateTimeField(_("finished at"), null=True)

    objects = JobQuerySet.as_manager()

    # Told by enqueue: False where the key had been used for the same job before.
    created: bool = True

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        constraints = [
            models.UniqueConstraint(fields=["namespace", "key_hash"], name="ddj_job_key"),
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in State]), name="ddj_job_state"
            ),
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in UNCLAIMED], claim_id__isnull=True)
                | (~Q(state__in=[s.value for s in UNCLAIMED]) & Q(claim_id__isnull=False)),
                name="ddj_job_claim",
            ),
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in SETTLED], finished_at__isnull=False)
                | (~Q(state__in=[s.value for s in SETTLED]) & Q(finished_at__isnull=True)),
                name="ddj_job_finished",
            ),
        ]
        # No index names a column that the claim or the settlement writes, so that PostgreSQL
        # updates in place (docs/decisions/queue-entries.md).
        indexes = [models.Index(fields=["target_kind", "target_id"], name="ddj_job_target")]
        permissions = [
            ("cancel_job", _("Can cancel queued jobs")),
            ("requeue_job", _("Can requeue settled jobs")),
            ("resolve_job", _("Can resolve interrupted jobs")),
            ("stop_job", _("Can stop running jobs")),
            ("run_job_now", _("Can run queued jobs now")),
            ("view_payload", _("Can see payloads and results")),
            ("view_secrets", _("Can see masked values")),
        ]

    def __str__(self) -> str:
        return f"{self.type}#{self.id}"

    @property
    def latest_execution(self) -> Any:
        """The newest attempt (by creation, since attempts repeat after a release), or None."""
        return self.executions.order_by("-id").first()

    @staticmethod
    def parse_id(value: object) -> uuid.UUID | None:
        """Return ``value`` as a job id, None where it cannot be one."""
        if isinstance(value, uuid.UUID):
            return value
        try:
            return uuid.UUID(value) if isinstance(value, str) else None
        except ValueError:
            return None
