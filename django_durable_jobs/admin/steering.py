"""What operators do to jobs: ask first, do it one by one, and tell what was and was not done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from .. import jobs
from ..errors import DurableJobsError
from ..models import Job
from ..states import State


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing an operator may do: how it is called, asked for and told of."""

    name: str  # also of the permission: "cancel" needs cancel_job
    button: Promise
    yes: Promise
    title: Promise
    explanation: Promise
    done: Promise  # with %(count)d
    logged: Promise
    states: tuple[State, ...]
    do: Callable[[UUID, str], Job | None]
    takes_reason: bool = False

    def suits(self, job: Job) -> bool:
        return job.state in self.states


CANCEL = Deed(
    name="cancel",
    button=_("Cancel…"),
    yes=_("Yes, cancel"),
    title=_("Cancel jobs"),
    explanation=_(
        "A queued job is withdrawn and will not run. One that a worker takes before you confirm"
        " runs all the same: you will be told."
    ),
    done=_("Cancelled: %(count)d."),
    logged=_("Cancelled."),
    states=(State.QUEUED,),
    do=lambda id, reason: jobs.cancel(id, reason or None),
    takes_reason=True,
)
REQUEUE = Deed(
    name="requeue",
    button=_("Requeue…"),
    yes=_("Yes, requeue"),
    title=_("Requeue jobs"),
    explanation=_(
        "The job goes back into the queue with one more attempt. Its handler may have done some or"
        " all of its work already, above all where it was interrupted: requeue it if running it"
        " once more does no harm."
    ),
    done=_("Requeued: %(count)d."),
    logged=_("Requeued."),
    states=(State.FAILED, State.INTERRUPTED, State.CANCELLED),
    do=lambda id, reason: jobs.requeue(id),
)
DEEDS = {deed.name: deed for deed in (CANCEL, REQUEUE)}


@dataclass(slots=True)
class Report:
    """Which jobs it was done to, and why not to the others."""

    done: list[Job] = field(default_factory=list)
    refused: list[tuple[Job, str]] = field(default_factory=list)


def perform(deed: Deed, chosen: Sequence[Job], reason: str = "") -> Report:
    """Do it to each job, in a transaction of its own: a job that changed meanwhile is reported."""
    report = Report()
    for job in chosen:
        problem = _attempt(deed, job, reason)
        if problem:
            report.refused.append((job, problem))
        else:
            report.done.append(job)
    return report


def _attempt(deed: Deed, job: Job, reason: str) -> Any:
    """Do it to one job; return why it could not be done."""
    try:
        return None if deed.do(job.pk, reason) else _("It does not exist any more.")
    except DurableJobsError as error:
        return str(error)
    except ValueError as error:  # a row edited by hand, whose JSON cannot be read
        return _("Its row cannot be read (%(error)s).") % {"error": error}
