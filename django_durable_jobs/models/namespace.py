"""The namespace: whose turn it is, and whether it is paused."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..fields import IdentifierField, UTCDateTimeField


class Namespace(models.Model):
    """Keep what belongs to a whole namespace; its row lock puts the namespace's claims in order."""

    name = IdentifierField(_("name"), max_length=64, primary_key=True)
    # The owner who was dealt the last slot: the next turn starts after it, whoever claims.
    turn_after = IdentifierField(_("turn after"), max_length=256, blank=True, default="")
    paused_at = UTCDateTimeField(_("paused since"), null=True, blank=True)
    paused_by = models.CharField(_("paused by"), max_length=150, blank=True, default="")
    paused_reason = models.TextField(_("paused because"), blank=True, default="")

    class Meta:
        verbose_name = _("namespace")
        verbose_name_plural = _("namespaces")

    def __str__(self) -> str:
        return str(self.name)
