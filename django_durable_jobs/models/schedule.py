"""Schedules, the ticks they fired and the ticks they missed."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..fields import IdentifierField, UTCDateTimeField
from ..states import TickOutcome
from .job import Job


class Schedule(models.Model):
    """What the cluster knows of a recurrence that the code declares."""

    class Kind(models.TextChoices):
        CRON = "cron", _("cron")
        EVERY = "every", _("every")

    id = models.BigAutoField(primary_key=True)
    namespace = IdentifierField(_("namespace"), max_length=64)
    name = IdentifierField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=5, choices=Kind.choices)
    when = models.CharField(_("when"), max_length=512)
    timezone = models.CharField(_("time zone"), max_length=64)
    # Everything that moves ticks, as JSON: an edit is seen by it, and never fires an old tick.
    rule = models.CharField(max_length=512, editable=False)
    declared_at = UTCDateTimeField(_("declared at"))
    retired_at = UTCDateTimeField(_("gone from the code since"), null=True)
    anchor = UTCDateTimeField(_("anchor"), null=True)
    next_fire = UTCDateTimeField(_("next fire"), null=True)
    last_run = UTCDateTimeField(_("last run"), null=True)
    last_finish = UTCDateTimeField(_("last finish"), null=True)
    last_error = models.TextField(_("last error"), blank=True, default="")
    last_job = models.ForeignKey(
        Job,
        models.SET_NULL,
        null=True,
        db_constraint=False,
        related_name="+",
        verbose_name=_("last job"),
    )
    running = models.BooleanField(_("running"), default=False)
    fires = models.PositiveBigIntegerField(_("fires"), default=0)
    misses = models.PositiveBigIntegerField(_("misses"), default=0)
    non_leader_skips = models.PositiveBigIntegerField(_("non-leader skips"), default=0)
    tick_claim_lost = models.PositiveBigIntegerField(_("tick claims lost"), default=0)
    failures_in_row = models.PositiveIntegerField(_("failures in a row"), default=0)
    paused_at = UTCDateTimeField(_("paused since"), null=True)
    paused_by = models.CharField(_("paused by"), max_length=150, blank=True, default="")
    paused_reason = models.TextField(_("paused because"), blank=True, default="")
    # Ticks up to here fell into a pause: they never fire.
    resumed_at = UTCDateTimeField(_("resumed at"), null=True)
    # Due already, and put in when the run before it has ended (overlap="queue").
    waiting = UTCDateTimeField(_("waits for the run before it"), null=True)

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        constraints = [
            models.UniqueConstraint(fields=["namespace", "name"], name="ddj_schedule_name")
        ]
        indexes = [models.Index(fields=["namespace", "next_fire"], name="ddj_schedule_next")]
        permissions = [
            ("pause_schedule", _("Can pause and resume schedules")),
            ("fire_schedule", _("Can fire schedules by hand")),
        ]

    def __str__(self) -> str:
        return str(self.name)


class TickClaim(models.Model):
    """One tick of one schedule: whoever inserts the row fires it, so it fires at most once."""

    id = models.BigAutoField(primary_key=True)
    namespace = IdentifierField(_("namespace"), max_length=64)
    name = IdentifierField(_("schedule"), max_length=200)
    scheduled_at = UTCDateTimeField(_("scheduled at"))
    claimed_at = UTCDateTimeField(_("claimed at"))
    claimed_by = models.UUIDField(_("claimed by worker"), null=True)
    job = models.ForeignKey(
        Job,
        models.SET_NULL,
        null=True,
        db_constraint=False,
        related_name="tick_claims",
        verbose_name=_("job"),
    )
    outcome = models.CharField(_("outcome"), max_length=8, choices=TickOutcome.choices)
    reason = models.CharField(_("reason"), max_length=64, blank=True, default="")
    # Until the leader has seen how the job ended: these few say whose previous run is in flight.
    open = models.BooleanField(_("run not over"), default=False)

    class Meta:
        verbose_name = _("tick claim")
        verbose_name_plural = _("tick claims")
        constraints = [
            models.UniqueConstraint(
                fields=["namespace", "name", "scheduled_at"], name="ddj_tick_once"
            )
        ]
        indexes = [
            models.Index(fields=["namespace", "scheduled_at"], name="ddj_tick_time"),
            models.Index(fields=["namespace", "open"], name="ddj_tick_open"),
        ]

    def __str__(self) -> str:
        return f"{self.name} at {self.scheduled_at:%Y-%m-%d %H:%M:%SZ}"


class TickGap(models.Model):
    """A stretch of ticks that a schedule missed in one piece: by a pause, a downtime, an edit."""

    id = models.BigAutoField(primary_key=True)
    namespace = IdentifierField(_("namespace"), max_length=64)
    name = IdentifierField(_("schedule"), max_length=200)
    first = UTCDateTimeField(_("first tick"))
    last = UTCDateTimeField(_("last tick"))
    count = models.PositiveBigIntegerField(_("ticks"))
    reason = models.CharField(_("reason"), max_length=64)
    # The schedule's, under which they were ticks.
    rule = models.CharField(max_length=512, editable=False, default="")

    class Meta:
        verbose_name = _("tick gap")
        verbose_name_plural = _("tick gaps")
        indexes = [models.Index(fields=["namespace", "name", "first"], name="ddj_gap_first")]

    def __str__(self) -> str:
        return f"{self.name}: {self.count} from {self.first:%Y-%m-%d %H:%M:%SZ}"
