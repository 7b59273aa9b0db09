"""The namespace: whose turn it is, and whether it is paused."""

from __future__ import annotations

from django.db import models
from django.utils.text import format_lazy
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


class Overview(Namespace):
    """A namespace seen as a whole: no table, only a place for its page among those of the admin.

    It has no permissions either: the page shows each part to those who may view what is in it.
    """

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("overview")
        # The blank is not seen, and sorts it before the other pages in every language.
        verbose_name_plural = format_lazy(" {}", _("Overview"))
