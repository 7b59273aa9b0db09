"""The leader: the one worker of a namespace that fires schedules and prunes."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..fields import IdentifierField, UTCDateTimeField


class Leader(models.Model):
    """Who leads a namespace, and for how long: a lease with an epoch that grows with each leader.

    On a row of its own, since whatever a leader writes holds a share lock on it: whoever takes
    over waits until that is committed, and what an old leader writes after that finds another
    epoch.
    """

    namespace = IdentifierField(_("namespace"), max_length=64, primary_key=True)
    epoch = models.PositiveBigIntegerField(_("epoch"), default=0)
    worker = models.UUIDField(_("worker"), null=True)  # null: nobody leads
    acquired_at = UTCDateTimeField(_("leads since"), null=True)
    expires_at = UTCDateTimeField(_("lease ends at"), null=True)

    class Meta:
        verbose_name = _("leader")
        verbose_name_plural = _("leaders")

    def __str__(self) -> str:
        return f"{self.namespace} epoch {self.epoch}"
