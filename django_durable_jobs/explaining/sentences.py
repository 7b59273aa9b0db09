"""The sentence of each code. Facts are put in when it is rendered, in the language active then."""

from __future__ import annotations

from collections.abc import Callable

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..states import InterruptionReason
from .telling import Facts, closed, quoted, told

# Those that are always the same but for their facts.
_PLAIN: dict[str, str | Promise] = {
    "scheduled": gettext_lazy("It waits for its time: due in %(in_seconds)s (%(due_at)s)."),
    "retry": gettext_lazy(
        "Its attempt %(attempt)d failed: it is tried again in %(in_seconds)s (%(due_at)s)."
    ),
    "not_eligible": gettext_lazy(
        "Its can_run has said no for %(for_seconds)s (since %(since)s), or has failed, which the"
        " worker's log tells: it is asked again in %(in_seconds)s."
    ),
    "asked_again": gettext_lazy(
        "Its can_run has said no for %(for_seconds)s (since %(since)s), or has failed, which the"
        " worker's log tells: it is about to be asked again."
    ),
    "schedule_gone": gettext_lazy(
        "Its schedule %(schedule)s is gone from the code since %(since)s, and its type %(type)s"
        " with it: no live worker can run it. Cancel it, unless the schedule comes back."
    ),
    "schedule_paused": gettext_lazy(
        "Its schedule %(schedule)s is paused since %(since)s, which does not hold up what it has"
        " put in before."
    ),
    "namespace_full": gettext_lazy(
        "The namespace %(namespace)s is full: %(held)d jobs are claimed or running, and"
        " GLOBAL_CONCURRENCY is %(cap)d."
    ),
    "entry_missing": gettext_lazy(
        "It has no entry in the queue, since rows were edited by hand: a worker mends that within"
        " some minutes."
    ),
    "claimed": gettext_lazy(
        "Worker %(worker)s has held it for %(for_seconds)s, and is about to start it."
    ),
    "running": gettext_lazy(
        "It has been running for %(for_seconds)s (since %(since)s) on worker %(worker)s, attempt"
        " %(attempt)d."
    ),
    "claim_lost": gettext_lazy(
        "No execution holds it, since rows were edited by hand: a worker makes it interrupted"
        " within some minutes."
    ),
    "completed": gettext_lazy("It was completed at %(finished_at)s, on attempt %(attempt)d."),
    "replaced": gettext_lazy(
        "It was withdrawn at %(finished_at)s: the schedule of its loop was changed, and another"
        " job stands in its place."
    ),
}


# What waits


def _namespace_paused(facts: Facts) -> str:
    if facts["by"]:
        text = _("The namespace %(namespace)s was paused by %(by)s at %(since)s.")
    else:
        text = _("The namespace %(namespace)s was paused at %(since)s.")
    text %= told(facts)
    if facts["reason"]:
        text = f"{text} {_given(facts['reason'])}"
    then = _("No job of it is claimed until somebody resumes it.")
    return f"{text} {then}"


def _given(reason: str) -> str:
    return _("The reason given: %(reason)s") % {"reason": closed(reason)}


def _no_worker(facts: Facts) -> str:
    if facts["draining"]:
        text = ngettext(
            "The only worker of the namespace %(namespace)s is about to stop and takes no more"
            " jobs.",
            "All %(draining)d workers of the namespace %(namespace)s are about to stop and take no"
            " more jobs.",
            facts["draining"],
        )
    elif facts["silent"]:
        text = ngettext(
            "The only worker of the namespace %(namespace)s has given no sign of life for"
            " %(silent_seconds)s.",
            "None of the %(silent)d workers of the namespace %(namespace)s has given a sign of"
            " life for %(silent_seconds)s.",
            facts["silent"],
        )
    else:
        text = _("No worker serves the namespace %(namespace)s.")
    then = _("Start one: manage.py runscheduler.")
    return f"{text % told(facts)} {then}"


def _queue_not_served(facts: Facts) -> str:
    text = ngettext(
        "No live worker serves its queue %(queue)s: the only one serves others.",
        "No live worker serves its queue %(queue)s: the %(workers)d that there are serve others.",
        facts["workers"],
    )
    return text % told(facts)


def _no_handler(facts: Facts) -> str:
    if facts["known"]:
        text = _(
            "It was put off because no worker knew its type %(type)s. One that does is here now,"
            " and frees it within a minute or two."
        )
    elif facts["elsewhere"]:
        text = _(
            "No live worker that serves its queue %(queue)s has a handler for its type %(type)s;"
            " one that serves other queues has."
        )
    else:
        text = _(
            "No live worker has a handler for its type %(type)s: they run code that does not"
            " declare it."
        )
    return text % told(facts)


def _owner_cap(facts: Facts) -> str:
    jobs = ", ".join(job["id"] for job in facts["jobs"])
    if len(facts["jobs"]) < facts["held"]:
        jobs = f"{jobs}, …"
    text = ngettext(
        "Its owner %(owner)s may have %(cap)d job at a time (OWNER_CONCURRENCY) and has"
        " %(held)d: %(jobs)s.",
        "Its owner %(owner)s may have %(cap)d jobs at a time (OWNER_CONCURRENCY) and has"
        " %(held)d: %(jobs)s.",
        facts["cap"],
    )
    return text % (told(facts) | {"jobs": jobs})


def _no_free_slot(facts: Facts) -> str:
    if facts["slots"] == 1:
        return _("The only slot that it could run in is busy.")
    text = ngettext(
        "All %(slots)d slots of the worker that could run it are busy.",
        "All %(slots)d slots of the %(workers)d workers that could run it are busy.",
        facts["workers"],
    )
    return text % facts


def _turn(facts: Facts) -> str:
    if facts["or_more"]:
        text = _("It waits its turn behind %(jobs)s or more jobs of its owner.")
    else:
        text = ngettext(
            "It waits its turn behind %(jobs)s job of its owner.",
            "It waits its turn behind %(jobs)s jobs of its owner.",
            facts["jobs"],
        )
    return text % {"jobs": f"{facts['jobs']:,}"}


def _turn_owners(facts: Facts) -> str:
    if facts["or_more"]:
        text = _(
            "It waits its turn: the next slots go to other owners, %(owners)s or more of them."
        )
    else:
        text = ngettext(
            "It waits its turn: the next slot goes to another owner.",
            "It waits its turn: the next slots go to %(owners)s other owners.",
            facts["owners"],
        )
    return text % {"owners": f"{facts['owners']:,}"}


def _claimable(facts: Facts) -> str:
    text = _("It can run now: worker %(worker)s has a free slot and should take it in a moment.")
    if facts["late"]:
        late = _("Yet it has been due for %(for_seconds)s: see the log of that worker.")
        text = f"{text} {late}"
    return text % told(facts)


# What a worker holds


def _stop_requested(facts: Facts) -> str:
    if facts["late"]:
        text = _(
            "It was asked to stop %(asked_seconds)s ago (%(asked_at)s), and still runs on worker"
            " %(worker)s: its handler, or that worker, does not react."
        )
    else:
        text = _(
            "It was asked to stop %(asked_seconds)s ago: worker %(worker)s ends it in a moment."
        )
    return text % told(facts)


def _worker_silent(facts: Facts) -> str:
    if facts["silent_seconds"] is None:
        text = _("Worker %(worker)s, which holds it, is gone.")
    else:
        text = _(
            "Worker %(worker)s, which holds it, seems dead: its last sign of life was"
            " %(silent_seconds)s ago."
        )
    then = _back_to_the_queue(facts) if facts["requeued"] else _interrupted_soon(facts)
    return f"{text} {then}" % told(facts)


def _interrupted_soon(facts: Facts) -> str:
    if facts["lease_seconds"] > 0:
        return _("If none follows, it becomes interrupted in %(lease_seconds)s.")
    if facts["live"]:
        return _("A live worker makes it interrupted within seconds.")
    return _("It becomes interrupted when a worker is started: none is live.")


def _back_to_the_queue(facts: Facts) -> str:
    if facts["lease_seconds"] > 0:
        return _("If none follows, it goes back into the queue in %(lease_seconds)s.")
    if facts["live"]:
        return _("A live worker puts it back into the queue within seconds.")
    return _("It goes back into the queue when a worker is started: none is live.")


# What became of it


def _resolved(facts: Facts) -> str:
    if facts["by"]:
        text = _(
            "It was interrupted, and marked as completed by %(by)s at %(finished_at)s: its work had"
            " been done."
        )
    else:
        text = _(
            "It was interrupted, and marked as completed at %(finished_at)s: its work had been"
            " done."
        )
    return text % told(facts)


def _failed(facts: Facts) -> str:
    if facts["error_code"]:
        text = _("It failed at %(finished_at)s, on attempt %(attempt)d, as %(error_code)s.")
    else:
        text = _("It failed at %(finished_at)s, on attempt %(attempt)d.")
    then = _("See the error of that attempt; requeue it to have it run once more.")
    return f"{text % told(facts)} {then}"


def _interrupted(facts: Facts) -> str:
    labels = dict(InterruptionReason.choices)
    why = str(labels.get(facts["reason"], quoted(facts["reason"])))
    text = _("It was interrupted at %(finished_at)s: %(why)s.")
    if not why:
        text = _("It was interrupted at %(finished_at)s.")
    if facts["started"]:
        then = _(
            "Nobody knows how far it came: resolve it if its work was done, else requeue it to"
            " have it run again."
        )
    else:
        then = _("Its handler was not called: requeue it to have it run.")
    return f"{text % (told(facts) | {'why': why})} {then}"


def _stuck(facts: Facts) -> str:
    text = ngettext(
        "Worker %(worker)s has %(stuck)d handler that does not end: it may be this one, still at"
        " work.",
        "Worker %(worker)s has %(stuck)d handlers that do not end: one may be this one, still at"
        " work.",
        facts["stuck"],
    )
    return text % told(facts)


def _cancelled(facts: Facts) -> str:
    text = _("It was cancelled at %(finished_at)s.") % told(facts)
    if facts["reason"]:
        text = f"{text} {_given(facts['reason'])}"
    then = _("Requeue it to have it run after all.")
    return f"{text} {then}"


def _withdrawn(facts: Facts) -> str:
    match facts["reason"]:
        case "record_deleted":
            text = _("It was withdrawn at %(finished_at)s: its loop was deleted.")
        case "record_requires_owner":
            text = _("It was withdrawn at %(finished_at)s: its loop has no owner.")
        case _:
            text = _(
                "It was withdrawn at %(finished_at)s: its loop was disabled, or has no next time."
            )
    return text % told(facts)


_CHOSEN: dict[str, Callable[[Facts], str]] = {
    "namespace_paused": _namespace_paused,
    "no_worker": _no_worker,
    "queue_not_served": _queue_not_served,
    "no_handler": _no_handler,
    "owner_cap": _owner_cap,
    "no_free_slot": _no_free_slot,
    "turn": _turn,
    "turn_owners": _turn_owners,
    "claimable": _claimable,
    "stop_requested": _stop_requested,
    "worker_silent": _worker_silent,
    "resolved": _resolved,
    "failed": _failed,
    "interrupted": _interrupted,
    "stuck": _stuck,
    "cancelled": _cancelled,
    "withdrawn": _withdrawn,
}
CODES = (*_PLAIN, *_CHOSEN)


def sentence(code: str, facts: Facts) -> str:
    """Return what a code and its facts come to in words."""
    if code in _CHOSEN:
        return _CHOSEN[code](facts)
    return str(_PLAIN[code]) % told(facts)
