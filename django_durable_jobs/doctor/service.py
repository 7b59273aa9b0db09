"""Who serves a namespace: workers, a leader, schedules."""

from __future__ import annotations

from collections.abc import Iterator

from ..claims import live_types
from ..insight import is_overdue, worker_problems
from ..models import Namespace
from ..registry import handlers, schedules
from .finding import Finding, Patient, Severity, ago, at, by, short, some, span

_RESTART = "Restart the workers with this code, if it is the newer one."


def workers(patient: Patient) -> Iterator[Finding]:
    """Judge the workers as ``health`` does, and tell of those that are silent or have trouble."""
    rows = patient.told["workers"]
    live = [worker for worker in rows if worker["live"]]
    errors = [short(f"{at(each)}: {each['error']}") for each in live if not each["healthy"]]
    advice = {
        "no-worker": "Start `manage.py runscheduler`.",
        "worker-unhealthy": f"It goes on by itself when the database serves it. {some(errors)}",
    }
    bad = list(worker_problems(rows, None))
    for problem in bad:
        yield Finding("workers", "problem", problem.message, advice.get(problem.code, ""))
    if not bad:
        busy, slots = (sum(each[name] for each in live) for name in ("active", "concurrency"))
        yield Finding("workers", "ok", f"{len(live)} live, {busy} of {slots} slots busy.")
    silent = [
        f"{at(each)} for {ago(each['heartbeat_at'], patient.now)}"
        for each in rows
        if not each["live"]
    ]
    if silent:
        text = f"No sign of life, and not signed off: {some(silent)}."
        todo = "See why it died. A live worker interrupts what it held."
        yield Finding("workers", "warning", text, todo)
    stuck = [f"{each['stuck']} in {at(each)}" for each in live if each["stuck"]]
    if stuck:
        text = f"Handlers do not end although they were told to: {some(stuck)}."
        todo = "The worker's log names them. Their threads are lost until it is restarted."
        yield Finding("workers", "warning", text, todo)


def leader(patient: Patient) -> Iterator[Finding]:
    """Tell who leads; nobody is a problem where there are schedules."""
    found = patient.told["leader"]
    if found is not None and found["live"]:
        live = {each["id"]: at(each) for each in patient.told["workers"] if each["live"]}
        if found["worker"] in live:
            yield Finding("leader", "ok", f"{live[found['worker']]} leads.")
            return
        left = span((found["lease_ends_at"] - patient.now).total_seconds())
        text = "The worker that led is gone: nothing fires until its lease ends."
        yield Finding("leader", "warning", text, f"In {left} another one takes over by itself.")
        return
    wanted = patient.told["aggregate"]["total"] or schedules.all()
    severity: Severity = "problem" if wanted else "warning"
    text = "Nobody leads: schedules do not fire, and nothing old is deleted."
    advice = "Start `manage.py runscheduler`, one of them without --no-schedules."
    yield Finding("leader", severity, text, advice)


def pause(patient: Patient) -> Iterator[Finding]:
    """Tell of a namespace that is paused as a whole."""
    rows = Namespace.objects.using(patient.alias).filter(pk=patient.namespace)
    row = rows.filter(paused_at__isnull=False).first()
    if row is None:
        return
    told = f"for {ago(row.paused_at, patient.now)}{by(row.paused_by)}"
    told += f" ({short(row.paused_reason)})" * bool(row.paused_reason)
    text = f"The namespace is paused {told}: no job is claimed."
    advice = f"To go on: `durablejobs resume --namespace {patient.namespace}`."
    yield Finding("pause", "warning", text, advice)


def schedule(patient: Patient) -> Iterator[Finding]:
    """Compare the schedules' rows with this code, and tell of those that want looking at."""
    rows = {each["name"]: each for each in patient.told["schedules"] if not each["retired_at"]}
    here = {declaration.name: declaration for declaration in schedules.all()}
    known = live_types(patient.connection, patient.namespace)
    handled = {name for name, each in here.items() if handlers.get(each.type) is not None}
    unserved = [
        name for name, each in here.items() if name in handled and known and each.type not in known
    ]
    paused = [
        f"{each['name']}{by(each['paused_by'])}" for each in rows.values() if each["paused_at"]
    ]
    other = [name for name in rows if name in here and here[name].when != rows[name]["when"]]
    looked: list[tuple[Severity, list[str], str, str]] = [
        (
            "problem",
            [name for name, each in rows.items() if is_overdue(each, patient.now)],
            "overdue and not fired",
            "See who leads, and that worker's log.",
        ),
        (
            "problem",
            [name for name in here if name not in handled],
            "without a handler in this code",
            "Declare one by @job, or correct job=.",
        ),
        ("problem", unserved, "of a type that no live worker knows", _RESTART),
        (
            "warning",
            [name for name, each in rows.items() if each["last_error"]],
            "failed at the last run",
            "`durablejobs status` tells how.",
        ),
        ("warning", paused, "paused", "To go on: `durablejobs resume NAME`."),
        (
            "warning",
            [name for name in here if name not in rows],
            "declared here and taken by no worker yet",
            "Start `manage.py runscheduler`, or restart workers that run older code.",
        ),
        ("warning", other, "declared here with another rule than the workers'", _RESTART),
        (
            "warning",
            [name for name in rows if name not in here],
            "fired by the workers and not declared in this code",
            _RESTART,
        ),
    ]
    if not any(names for _, names, _, _ in looked):
        yield Finding("schedules", "ok", f"{len(rows):,}, none late, failed or paused.")
    for severity, names, what, advice in looked:
        if names:
            yield Finding("schedules", severity, f"{len(names)} {what}: {some(names)}.", advice)
