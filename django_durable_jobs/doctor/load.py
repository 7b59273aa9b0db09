"""What is to be done: what waits, what is stranded, what wants somebody's decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from django.apps import apps
from django.db import router
from django.db.models import F

from ..claims import NEVER, live_types
from ..db import statements_for
from ..insight import COUNTED
from ..models import Execution, LoopRecord, QueueEntry, Worker
from ..registry import handlers
from ..states import State
from .finding import Finding, Patient, Severity, many, short, some, span

# How long a job may have been due, and how long what is due may take to be worked off, in seconds.
LATE, LONG = 300.0, 3_600.0
# How many queued jobs of each kind are looked through for types that nobody knows.
LOOKED = 1_000


def queue(patient: Patient, max_age: float | None) -> Iterator[Finding]:
    """Judge what waits: for how long, how much, and whether anybody could ever take it."""
    bad = [*_unknown_types(patient), *_unserved_queues(patient)]
    bad += [*_oldest(patient, max_age), *_backlog(patient)]
    yield from bad
    if not bad:
        number = many(patient.told["counts"][State.QUEUED.value], "job", limit=COUNTED)
        rest = "none due for long" if patient.told["started"] else "and no worker to take any"
        yield Finding("queue", "ok", f"{number} queued, {rest}.")


def _unknown_types(patient: Patient) -> Iterator[Finding]:
    """Look at what was put off for want of a handler, and at the head of what is due."""
    live = live_types(patient.connection, patient.namespace)
    known = live or {handler.type for handler in handlers.handlers()}
    entries = QueueEntry.objects.using(patient.alias).filter(namespace=patient.namespace)
    found: Counter[str] = Counter()
    for which in ({"due": False, "claimable_at__gte": NEVER}, {"due": True}):
        rows = entries.filter(**which).order_by("claimable_at").values_list("type", flat=True)
        found.update(type for type in rows[:LOOKED] if type not in known)
    if found:
        names = [f"{type} ({number:,}{'+' * (number >= LOOKED)})" for type, number in found.items()]
        who = "live worker" if live else "handler here"
        text = f"Queued, of types that no {who} knows: {some(names)}."
        advice = "Start a worker whose code has them, or `durablejobs cancel --type TYPE`."
        yield Finding("queue", "problem", text, advice)


def _unserved_queues(patient: Patient) -> Iterator[Finding]:
    workers = Worker.objects.using(patient.alias).filter(
        pk__in=[each["id"] for each in patient.told["workers"] if each["live"]]
    )
    serving = list(workers)
    left = [
        name
        for name in statements_for(patient.connection).queues(patient.namespace)
        if not any(_serves(worker, name) for worker in serving)
    ]
    if serving and left:
        text = f"Jobs wait in queues that no live worker serves: {some(left)}."
        advice = "Start `manage.py runscheduler --queues NAME`, or one that serves all."
        yield Finding("queue", "problem", text, advice)


def _serves(worker: Worker, queue: str) -> bool:
    wanted = worker.queues is None or queue in worker.queues
    return wanted and queue not in worker.excluded_queues


def _oldest(patient: Patient, max_age: float | None) -> Iterator[Finding]:
    oldest = patient.told["oldest_due"]
    limit = LATE if max_age is None else max_age
    if oldest is None or oldest["age"] <= limit or patient.told["paused_at"] is not None:
        return
    severity: Severity = "warning" if max_age is None else "problem"
    text = f"A job has been due for {span(oldest['age'])}: {oldest['type']} {oldest['id']}."
    advice = f"`durablejobs explain {oldest['id']}` tells why it does not run."
    yield Finding("queue", severity, text, advice)


def _backlog(patient: Patient) -> Iterator[Finding]:
    """Reckon how long what is due takes at the pace of the last minutes."""
    due = QueueEntry.objects.using(patient.alias).filter(namespace=patient.namespace, due=True)
    number = due[:COUNTED].count()
    ended = {name: count for name, count in patient.told["throughput"].items() if name != "seconds"}
    pace = sum(ended.values()) / patient.told["throughput"]["seconds"]
    if number < 100 or not pace or (takes := number / pace) < LONG:
        return
    due_now = many(number, "job", limit=COUNTED)
    text = f"{due_now} due: at {pace * 60:,.1f} a minute that takes {span(takes)}."
    advice = "Start more workers, or with more slots; see whether handlers have become slow."
    yield Finding("queue", "warning", text, advice)


def interrupted(patient: Patient) -> Iterator[Finding]:
    """Count the jobs of which nobody knows how far they came."""
    rows = Execution.objects.using(patient.alias).filter(
        namespace=patient.namespace,
        state=State.INTERRUPTED.value,
        job__state=State.INTERRUPTED.value,
        job__claim_id=F("claim_id"),
    )
    number = rows[:COUNTED].count()
    if not number:
        yield Finding("interrupted", "ok", "No job waits for a decision.")
        return
    kinds = Counter(rows.values_list("job__type", flat=True)[:LOOKED]).most_common()
    text = f"{many(number, 'interrupted job', limit=COUNTED)} to be decided on:"
    text += f" {some([f'{type} ({count:,})' for type, count in kinds])}."
    advice = (
        "Look how far each came, then `durablejobs requeue --state interrupted --type TYPE`, or"
        " `resolve` what was done after all."
    )
    yield Finding("interrupted", "warning", text, advice)


def loops(patient: Patient) -> Iterator[Finding]:
    """Tell of loop records that cannot have a job."""
    models = [model for model in apps.get_models() if issubclass(model, LoopRecord)]
    clean = True
    for model in models:
        if model._meta.proxy or model._meta.get_field("schedule_epoch").model is not model:
            continue  # its records are in the table of another
        rows = model._base_manager.using(router.db_for_write(model)).exclude(last_error="")
        first = rows.order_by("pk").values_list("pk", "last_error").first()
        if first is None:
            continue
        clean = False
        label = model._meta.label
        number = many(rows[:COUNTED].count(), "record", limit=COUNTED)
        text = f"{number} of {label} cannot have a job; {first[0]}: {short(first[1])}"
        advice = f"Correct them, then `durablejobs sync-loops {label}`."
        yield Finding("loops", "warning", text, advice)
    if models and clean:
        yield Finding("loops", "ok", "Every record that is enabled has a job or needs none.")
