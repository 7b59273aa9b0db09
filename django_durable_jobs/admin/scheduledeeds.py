"""What operators do to schedules, each by the verb that has the rules."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from ..db import retrying, transaction
from ..models import Schedule, TickClaim
from ..namespaces import database
from ..registry import schedules
from ..states import TickOutcome
from ..ticks import fire_now, pause_schedule, resume_schedule
from .steering import GONE, Answer, Deed, Refused


def _pause(row: Any, answer: Answer) -> None:
    words = {"by": answer.by, "reason": answer.reason}
    if not pause_schedule(row.name, **words, namespace=row.namespace, using=database()):
        raise Refused(_("It was paused already, and stays as it was paused first."))


def _resume(row: Any, answer: Answer) -> None:
    if not resume_schedule(row.name, namespace=row.namespace, using=database()):
        raise Refused(_("It is not paused."))


def _fire(row: Any, answer: Answer) -> UUID:
    """Fire by hand, once for each question: a double click must not fire twice."""
    alias = database()

    def fire() -> UUID:
        with transaction(alias):
            rows = Schedule.objects.using(alias).filter(pk=row.pk)
            if rows.select_for_update().first() is None:
                raise Refused(GONE)
            ticks = TickClaim.objects.using(alias).filter(namespace=row.namespace, name=row.name)
            if answer.asked_at is not None and answer.tick is None and _since(ticks, answer):
                raise Refused(_("It was fired by hand since you were asked: look again."))
            return fire_now(
                row.name,
                force=answer.force,
                tick=answer.tick,
                namespace=row.namespace,
                using=alias,
            ).pk

    return fire() if connections[alias].in_atomic_block else retrying(fire)


def _since(ticks: QuerySet[TickClaim], answer: Answer) -> bool:
    # One that is fired now is claimed for now: the index on the time finds it.
    recent = ticks.filter(scheduled_at__gte=answer.asked_at, outcome=TickOutcome.MANUAL)
    return recent.filter(claimed_at__gte=answer.asked_at).exists()


def _make_up(row: Any, answer: Answer) -> UUID:
    if answer.tick is None:
        raise Refused(_("No tick was chosen."))
    return _fire(row, answer)


def _is_declared(row: Any) -> bool:
    return schedules.get(row.name) is not None


PAUSE = Deed(
    name="pause",
    permission="pause_schedule",
    button=_("Pause…"),
    yes=_("Yes, pause"),
    title=_("Pause schedules"),
    explanation=_(
        "A paused schedule does not fire, through restarts and deploys, until somebody resumes it."
        " What it has put in already goes on."
    ),
    done=_("Paused: %(count)d."),
    logged=_("Paused."),
    suits=lambda row: row.paused_at is None and row.retired_at is None,
    do=_pause,
    takes_reason=True,
)
RESUME = Deed(
    name="resume",
    permission="pause_schedule",
    button=_("Resume…"),
    yes=_("Yes, resume"),
    title=_("Resume schedules"),
    explanation=_(
        "It fires again from its next tick on. What fell into the pause does not fire; it is in the"
        " ledger, and can be made up for one by one."
    ),
    done=_("Resumed: %(count)d."),
    logged=_("Resumed."),
    suits=lambda row: row.paused_at is not None,
    do=_resume,
)
FIRE = Deed(
    name="fire",
    permission="fire_schedule",
    button=_("Fire now…"),
    yes=_("Yes, fire now"),
    title=_("Fire schedules now"),
    explanation=_(
        "Its job is enqueued now, whether it is paused or not; the next tick stays where it is."
        " While an earlier run is in flight it does not fire, unless you force it."
    ),
    done=_("Fired: %(count)d."),
    logged=_("Fired by hand."),
    suits=_is_declared,
    do=_fire,
    takes_force=True,
)
MAKE_UP = Deed(
    name="make_up",
    permission="fire_schedule",
    button=_("Make up…"),
    yes=_("Yes, make up for it"),
    title=_("Make up for a missed tick"),
    explanation=_(
        "The job of the missed tick is enqueued now, as if that tick had fired: once, whoever asks."
        " While an earlier run is in flight it does not fire, unless you force it."
    ),
    done=_("Made up for: %(count)d."),
    logged=_("Made up for a missed tick."),
    suits=_is_declared,
    do=_make_up,
    takes_force=True,
)
