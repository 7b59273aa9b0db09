"""Tables for people: each figure as the median of its rounds, and the ratios that count."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.subjects import SUBJECTS


@dataclass(frozen=True)
class Measurement:
    """One figure: a rate per second, or a list of latencies in ms.

    ``microseconds`` is the processor time of each job, where it was measured; ``others`` the share
    of the CPUs that was busy just before.
    """

    part: str
    subject: str
    variant: str
    slots: int | None
    value: Any
    microseconds: float | None
    others: float
    load: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def tables(found: Sequence[Measurement]) -> Iterable[str]:
    """Return the lines of all tables."""
    for part, title in (
        ("drain", "No-op jobs, one worker process, jobs/s"),
        ("write", "Jobs with one ORM write each, one worker process, jobs/s"),
    ):
        yield from _drains([m for m in found if m.part == part], title)
    yield from _enqueues([m for m in found if m.part == "enqueue"])
    yield from _pick_ups([m for m in found if m.part == "latency"])


def _rate(found: Iterable[Measurement], **wanted: Any) -> float | None:
    values = [m.value for m in found if all(getattr(m, k) == v for k, v in wanted.items())]
    return statistics.median(values) if values else None


def _drains(found: Sequence[Measurement], title: str) -> Iterable[str]:
    if not found:
        return
    slots = sorted({m.slots or 0 for m in found})
    columns = sorted({(m.subject, m.variant) for m in found}, key=_place)
    rows = []
    for subject, variant in columns:
        rates = [_rate(found, subject=subject, variant=variant, slots=n) for n in slots]
        rows.append([f"{_label(subject)} {variant}".strip(), *map(_count, rates)])
    durable = [_rate(found, subject="durable", variant="", slots=n) for n in slots]
    for other, words in (("procrastinate", "times Procrastinate"), ("ox", "times django-ox")):
        rates = [_rate(found, subject=other, variant="", slots=n) for n in slots]
        rows.append([f"durable-jobs: {words}", *map(_times, durable, rates)])
    rates = [_rate(found, subject="floor", variant="", slots=n) for n in slots]
    rows.append(["durable-jobs: share of plain psycopg", *map(_share, durable, rates)])
    yield from _table(title, ["slots", *map(str, slots)], rows)
    yield from _processors(found, title.split(",", 1)[0], slots, columns)


def _processors(
    found: Sequence[Measurement], title: str, slots: list[int], columns: list[tuple[str, str]]
) -> Iterable[str]:
    """Show the processor time of each job, which does not depend on how busy the machine is."""

    def each(subject: str, variant: str, n: int) -> float | None:
        chosen = [m for m in found if (m.subject, m.variant, m.slots) == (subject, variant, n)]
        values = [m.microseconds for m in chosen if m.microseconds]
        return statistics.median(values) if values else None

    rows = [
        [
            f"{_label(subject)} {variant}".strip(),
            *(_count(each(subject, variant, n)) for n in slots),
        ]
        for subject, variant in columns
    ]
    durable = [each("durable", "", n) for n in slots]
    theirs = [each("procrastinate", "", n) for n in slots]
    rows.append(["Procrastinate: times durable-jobs", *map(_times, theirs, durable)])
    title = f"{title}: processor time, worker and database, µs/job"
    yield from _table(title, ["slots", *map(str, slots)], rows)


def _enqueues(found: Sequence[Measurement]) -> Iterable[str]:
    if not found:
        return
    verbs = ("one", "inside", "many")
    names = [s.name for s in SUBJECTS if any(m.subject == s.name for m in found)]
    rows = []
    for name in names:
        rates = [_rate(found, subject=name, variant=verb) for verb in verbs]
        rows.append([_label(name), *map(_count, rates)])
    durable = [_rate(found, subject="durable", variant=verb) for verb in verbs]
    for other, words in (("procrastinate", "times Procrastinate"), ("ox", "times django-ox")):
        rates = [_rate(found, subject=other, variant=verb) for verb in verbs]
        rows.append([f"durable-jobs: {words}", *map(_times, durable, rates)])
    rates = [_rate(found, subject="floor", variant=verb) for verb in verbs]
    rows.append(["durable-jobs: share of plain psycopg", *map(_share, durable, rates)])
    title = "Enqueueing from one thread, jobs/s"
    yield from _table(title, ["", "autocommit", "in a transaction", "10,000 at once"], rows)


def _pick_ups(found: Sequence[Measurement]) -> Iterable[str]:
    if not found:
        return
    rows = []
    for subject in SUBJECTS:
        values = sorted(v for m in found if m.subject == subject.name for v in m.value)
        if values:
            at = [values[int(share * (len(values) - 1))] for share in (0.5, 0.95, 1.0)]
            rows.append([subject.label, *(f"{value:,.2f}" for value in at), str(len(values))])
    title = "Pick-up by an idle worker with default settings, ms from COMMIT to the handler"
    yield from _table(title, ["", "p50", "p95", "max", "jobs"], rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    yield f"\n{title}"
    for row in [head, *rows]:
        first, *rest = (
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join([first, *rest])


def _place(column: tuple[str, str]) -> tuple[int, str]:
    return [subject.name for subject in SUBJECTS].index(column[0]), column[1]


def _label(name: str) -> str:
    return next(subject.label for subject in SUBJECTS if subject.name == name)


def _count(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"


def _times(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.1f}" if ours and theirs else "-"


def _share(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.0%}" if ours and theirs else "-"
