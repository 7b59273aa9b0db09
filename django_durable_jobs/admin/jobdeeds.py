"""What operators do to jobs, each by the verb that has the rules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.db import connections
from django.utils.translation import gettext_lazy as _

from .. import jobs
from ..db import current_clock, retrying, transaction
from ..errors import InvalidJob
from ..loops.occurrences import TARGET
from ..models import Execution, Job, QueueEntry
from ..namespaces import database
from ..states import ACTIVE, EDGES, State
from .steering import GONE, Answer, Deed, Refused


def _in_one_transaction(act: Callable[[], None]) -> None:
    """Do it so that what was looked at is still so when it is done."""
    alias = database()

    def tried() -> None:
        with transaction(alias):
            act()

    if connections[alias].in_atomic_block:
        tried()
    else:
        retrying(tried)


def _locked(row: Any) -> Any:
    """Return the job as it is now, locked; without its JSON, which may be unreadable."""
    columns = ("state", "stop_requested_at", "finished_at", "target_kind")
    found = Job.objects.using(database()).filter(pk=row.pk).only(*columns)
    job = found.select_for_update().first()
    if job is None:
        raise Refused(GONE)
    return job


def _refuse_what_ended_since(job: Any, answer: Answer) -> None:
    """Refuse the second of two equal answers, should the job have run between them."""
    asked, ended = answer.asked_at, job.finished_at
    if asked is not None and ended is not None and ended > asked:
        raise Refused(_("Job %s has ended anew since you were asked: look again.") % job.pk)


def _cancel(row: Any, answer: Answer) -> None:
    if jobs.cancel(row.pk, answer.reason or None) is None:
        raise Refused(GONE)


def _requeue(row: Any, answer: Answer) -> None:
    def act() -> None:
        _refuse_what_ended_since(_locked(row), answer)
        jobs.requeue(row.pk)

    _in_one_transaction(act)


def _resolve(row: Any, answer: Answer) -> None:
    def act() -> None:
        job = _locked(row)
        if job.state == State.INTERRUPTED:
            _refuse_what_ended_since(job, answer)
        jobs.resolve(row.pk, answer.reason, by=answer.by)

    _in_one_transaction(act)


def _stop(row: Any, answer: Answer) -> None:
    """Ask a job that a worker holds to stop, once: a second request would tell it anew."""

    def act() -> None:
        # In the order in which the house locks: the execution, then the job.
        held = Execution.objects.using(database()).filter(job_id=row.pk, state__in=ACTIVE)
        list(held.order_by("pk").select_for_update().values_list("pk"))
        job = _locked(row)
        if job.state not in ACTIVE:
            # The verb would cancel a queued one, which takes another permission.
            state = job.get_state_display()
            raise Refused(_("Job %(job)s is not running: it is %(state)s.") % _words(job, state))
        if job.stop_requested_at is not None:
            raise Refused(_("Job %s was asked to stop already.") % job.pk)
        jobs.request_stop(row.pk, answer.reason or None)

    _in_one_transaction(act)


def _run_now(row: Any, answer: Answer) -> None:
    """Make a queued job due, unless it is."""

    def act() -> None:
        alias = database()
        entry = QueueEntry.objects.using(alias).filter(pk=row.pk).select_for_update().first()
        job = _locked(row)
        if job.target_kind == TARGET:
            raise Refused(_("Job %s belongs to a loop: run the loop now instead.") % job.pk)
        now = current_clock().now(connections[alias])
        if entry is not None and entry.claimable_at <= now:
            raise Refused(_("Job %s is due already.") % job.pk)
        try:
            jobs.replace_queued(row.pk, run_at=now)
        except InvalidJob as error:  # whose message may quote the payload
            problem = _("Job %s cannot be read, or its payload does not fit its handler.")
            raise Refused(problem % job.pk) from error

    _in_one_transaction(act)


def _words(job: Any, state: Any) -> dict[str, Any]:
    return {"job": job.pk, "state": state}


def _suits(*states: State) -> Callable[[Any], bool]:
    return lambda job: job.state in states


CANCEL = Deed(
    name="cancel",
    permission="cancel_job",
    button=_("Cancel…"),
    yes=_("Yes, cancel"),
    title=_("Cancel jobs"),
    explanation=_(
        "A queued job is withdrawn and will not run. One that a worker takes before you confirm"
        " runs all the same: you will be told."
    ),
    done=_("Cancelled: %(count)d."),
    logged=_("Cancelled."),
    suits=_suits(*EDGES["cancel"].sources),
    states=EDGES["cancel"].sources,
    do=_cancel,
    takes_reason=True,
)
REQUEUE = Deed(
    name="requeue",
    permission="requeue_job",
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
    suits=_suits(*EDGES["requeue"].sources),
    states=EDGES["requeue"].sources,
    do=_requeue,
    takes_reason=True,
)
RESOLVE = Deed(
    name="resolve",
    permission="resolve_job",
    button=_("Resolve…"),
    yes=_("Yes, it was done"),
    title=_("Resolve interrupted jobs"),
    explanation=_(
        "An interrupted job may have been done or not: nobody knows but who looks. If it was done,"
        " say so here, and it counts as completed. If it was not, leave it, or requeue it."
    ),
    done=_("Resolved: %(count)d."),
    logged=_("Resolved: it was done after all."),
    suits=_suits(*EDGES["resolve"].sources),
    states=EDGES["resolve"].sources,
    do=_resolve,
    takes_reason=True,
    needs_reason=True,
    reason_label=_("How do you know? Kept with the job and its attempt"),
)
STOP = Deed(
    name="stop",
    permission="stop_job",
    button=_("Stop…"),
    yes=_("Yes, stop"),
    title=_("Stop running jobs"),
    explanation=_(
        "Its worker hears of it at once, or within a heartbeat. What returns within a few seconds"
        " is completed all the same; else it is interrupted where it stands, and does not run again"
        " by itself, whatever its handler declares."
    ),
    done=_("Asked to stop: %(count)d."),
    logged=_("Asked to stop."),
    suits=lambda job: job.state in ACTIVE and job.stop_requested_at is None,
    states=ACTIVE,
    do=_stop,
    takes_reason=True,
)
RUN_NOW = Deed(
    name="run_now",
    permission="run_job_now",
    button=_("Run now…"),
    yes=_("Yes, run now"),
    title=_("Run jobs now"),
    explanation=_(
        "A queued job that waits for its time, or for a retry, becomes due now; it then waits for"
        " its turn like any other. Its run at is changed to now, also for whoever enqueues it once"
        " more by its key."
    ),
    done=_("Made due now: %(count)d."),
    logged=_("Made due now."),
    suits=lambda job: job.state == State.QUEUED and job.target_kind != TARGET and _waits(job),
    states=(State.QUEUED,),
    do=_run_now,
)


def _waits(job: Any) -> bool:
    # By the clock of this machine, for the page that asks; the database's decides.
    return bool(job.claimable_at > datetime.now(UTC))
