"""The queue entry: what the claim sorts and filters by, one narrow row for each queued job."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..fields import IdentifierField, UTCDateTimeField
from .job import Job


class QueueEntry(models.Model):
    """Stand for one queued job in the queue; deleted by the claim, made again by whatever requeues.

    ``due`` rows may be claimed now; the others wait for ``claimable_at`` and are marked due by the
    first claim after it, so that a claim never walks past rows that it may not take.
    ``rank`` is the negated priority: every column of the index ascends (MariaDB before 10.8 has
    no descending indexes).
    """

    job = models.OneToOneField(
        Job,
        models.CASCADE,
        primary_key=True,
        # A foreign key on the hottest table costs 8 to 18 %; a repair finds what it would guard.
        db_constraint=False,
        related_name="queue_entry",
        verbose_name=_("job"),
    )
    namespace = IdentifierField(_("namespace"), max_length=64)
    queue = IdentifierField(_("queue"), max_length=64)
    due = models.BooleanField(_("due"))
    owner_id = IdentifierField(_("owner"), max_length=256, blank=True)
    rank = models.SmallIntegerField(_("rank"))
    run_at = UTCDateTimeField(_("run at"))
    created_at = UTCDateTimeField(_("created at"))
    claimable_at = UTCDateTimeField(_("claimable from"))
    type = IdentifierField(_("type"), max_length=256)
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    max_attempts = models.PositiveIntegerField(_("attempts granted"), null=True)

    class Meta:
        verbose_name = _("queue entry")
        verbose_name_plural = _("queue entries")
        indexes = [
            models.Index(
                fields=[
                    "namespace", "queue", "due", "owner_id", "rank", "run_at", "created_at", "job",
                ],
                name="ddj_queue_turn",
            ),
            models.Index(fields=["namespace", "due", "claimable_at"], name="ddj_queue_wait"),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.type}#{self.job_id}"
