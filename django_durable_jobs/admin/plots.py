"""Plots as SVG: from figures to markup, without scripts, styles or anything from elsewhere.

Pure functions. Colours and patterns come from the style sheet by class; everything that is told
besides is escaped. Coordinates are of a view box, WIDTH by HEIGHT, that the page scales.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..figures import Lane
from ..states import ExecutionState
from .shown import Text, duration, local

WIDTH, HEIGHT = 360, 176
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 10, 24
LANE_WIDTH, TRACK, MOST_TRACKS = 1_000, 10, 4
CELLS = 200  # as finely as a lane tells executions apart

# Steps that people read durations by, in seconds.
_ROUND = (10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
# What of several executions in one place of a lane is shown is the last in these rows.
_WELL = ("released", "claimed", "completed", "running")
_WRONG = ("interrupted", "failed")
_NAMES = dict(ExecutionState.choices)


@dataclass(frozen=True, slots=True)
class Series:
    """One row of values, one for each bucket; None where there is none. ``kind`` is a class."""

    kind: str
    label: Text
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Frame:
    """What a plot stands in: its name for the page, what it is called and says, and its buckets.

    ``covered`` says of each bucket whether its values are known.
    """

    id: str
    title: Text
    description: Text
    starts: Sequence[datetime]
    bucket: int  # seconds
    covered: Sequence[bool]

    def x(self, number: float) -> float:
        """Return where a bucket, or a part of it, begins."""
        inside = WIDTH - LEFT - RIGHT
        return LEFT + inside * number / max(len(self.starts), 1)


def bars(frame: Frame, series: Sequence[Series]) -> SafeString:
    """Draw a bar for each bucket, the series one upon the other, as counts per minute."""
    per_minute = 60 / frame.bucket
    stacks = [
        [max(row.values[n] or 0, 0) * per_minute for row in series]
        for n in range(len(frame.starts))
    ]
    ticks = number_ticks(max(map(sum, stacks), default=0))
    parts = []
    for n, stack in enumerate(stacks):
        width = frame.x(n + 1) - frame.x(n)
        top = 0.0
        for row, value in zip(series, stack, strict=True):
            if value > 0:
                low, top = top, top + value
                told = f"{_clock(frame.starts[n])} · {row.label}: {_number(value)}"
                place = (frame.x(n) + width * 0.08, width * 0.84, low, top)
                parts.append(_bar(row.kind, place, ticks[-1], told))
    labels = [(value, _number(value)) for value in ticks]
    return _svg(frame, labels, ticks[-1], _joined(parts))


def lines(frame: Frame, series: Sequence[Series]) -> SafeString:
    """Draw a line for each series of durations in seconds, broken where there is no value."""
    known = [value for row in series for value in row.values if value is not None]
    ticks = duration_ticks(max(known, default=0))
    parts = []
    for row in series:
        points = [
            None if value is None else (frame.x(n + 0.5), _y(value, ticks[-1]))
            for n, value in enumerate(row.values)
        ]
        for stretch in _stretches(points):
            drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in stretch)
            parts.append(
                format_html('<polyline class="ddj-line-{}" points="{}"/>', row.kind, drawn)
            )
        for n, point in enumerate(points):
            if point is not None:
                told = f"{_clock(frame.starts[n])} · {row.label}: {duration(row.values[n] or 0)}"
                parts.append(_dot(row.kind, point, told))
    labels = [(value, duration(value) if value else "0") for value in ticks]
    return _svg(frame, labels, ticks[-1], _joined(parts))


def _svg(
    frame: Frame, labels: Sequence[tuple[float, str]], top: float, drawn: SafeString
) -> SafeString:
    return format_html(
        '<svg class="ddj-plot" viewBox="0 0 {} {}" role="img" aria-labelledby="{}-title {}-desc">'
        '<title id="{}-title">{}</title><desc id="{}-desc">{}</desc>{}{}{}{}</svg>',
        WIDTH,
        HEIGHT,
        *[frame.id] * 3,
        frame.title,
        frame.id,
        frame.description,
        _unknown(frame),
        _joined(_level(_y(value, top), text) for value, text in labels),
        _joined(_times(frame)),
        drawn,
    )


def _level(y: float, text: str) -> SafeString:
    return format_html(
        '<line class="ddj-grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        '<text class="ddj-tick ddj-tick-y" x="{}" y="{}">{}</text>',
        *[LEFT, WIDTH - RIGHT, *[f"{y:.1f}"] * 2, LEFT - 6, f"{y + 4:.1f}", text],
    )


def _times(frame: Frame) -> Iterable[SafeString]:
    """Label some buckets with the time at which they begin, on whole steps of the clock."""
    span = frame.bucket * len(frame.starts)
    step = next((each for each in _ROUND if span / each <= 5), _ROUND[-1])
    for n, start in enumerate(frame.starts):
        here = local(start)
        midnight = here.replace(hour=0, minute=0, second=0, microsecond=0)
        x = frame.x(n)
        if (here - midnight).total_seconds() % step == 0 and x <= WIDTH - RIGHT - 14:
            yield format_html(
                '<line class="ddj-grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
                '<text class="ddj-tick ddj-tick-x" x="{}" y="{}">{}</text>',
                *[*[f"{x:.1f}"] * 2, HEIGHT - BOTTOM, HEIGHT - BOTTOM + 4],
                *[f"{x:.1f}", HEIGHT - 6, here.strftime("%H:%M")],
            )


def _unknown(frame: Frame) -> SafeString | str:
    """Shade the buckets of which not all executions were looked at: the first ones."""
    number = sum(not known for known in frame.covered)
    if not number:
        return ""
    return format_html(
        '<rect class="ddj-unknown" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        *[f"{frame.x(0):.1f}", TOP, f"{frame.x(number) - frame.x(0):.1f}", HEIGHT - TOP - BOTTOM],
        _("not looked at"),
    )


def _bar(kind: str, place: tuple[float, float, float, float], top: float, told: str) -> SafeString:
    x, width, low, high = place
    y = _y(high, top)
    height = max(_y(low, top) - y, 0.5)
    return format_html(
        '<rect class="ddj-bar ddj-fill-{}" x="{}" y="{}" width="{}" height="{}">'
        "<title>{}</title></rect>",
        *[kind, f"{x:.2f}", f"{y:.2f}", f"{width:.2f}", f"{height:.2f}", told],
    )


def _dot(kind: str, point: tuple[float, float], told: str) -> SafeString:
    """Mark a value: round for the first kind, square for the other, so that both are told apart."""
    x, y = point
    if kind == "p50":
        return format_html(
            '<circle class="ddj-dot-{}" cx="{}" cy="{}" r="2.5"><title>{}</title></circle>',
            *[kind, f"{x:.1f}", f"{y:.1f}", told],
        )
    return format_html(
        '<rect class="ddj-dot-{}" x="{}" y="{}" width="5" height="5"><title>{}</title></rect>',
        *[kind, f"{x - 2.5:.1f}", f"{y - 2.5:.1f}", told],
    )


def _y(value: float, top: float) -> float:
    inside = HEIGHT - TOP - BOTTOM
    return HEIGHT - BOTTOM - inside * min(max(value / top, 0), 1)


def _stretches(
    points: Iterable[tuple[float, float] | None],
) -> Iterable[list[tuple[float, float]]]:
    """Yield what of a line hangs together, where it is longer than a point."""
    stretch: list[tuple[float, float]] = []
    for point in [*points, None]:
        if point is not None:
            stretch.append(point)
            continue
        if len(stretch) > 1:
            yield stretch
        stretch = []


def _joined(parts: Iterable[SafeString]) -> SafeString:
    return format_html_join("", "{}", ((part,) for part in parts))


# Axes


def number_ticks(highest: float, most: int = 4) -> list[float]:
    """Return round numbers from 0 to at least ``highest``, in equal steps, ``most`` of them."""
    return _ticks(highest, _round_up(highest / most))


def duration_ticks(highest: float, most: int = 4) -> list[float]:
    """Return the same of durations in seconds: above some seconds, steps that clocks have."""
    step = highest / most
    if 5 < step <= _ROUND[-1]:
        return _ticks(highest, next(each for each in _ROUND if each >= step))
    if step > _ROUND[-1]:
        return _ticks(highest, _round_up(step / _ROUND[-1]) * _ROUND[-1])
    return _ticks(highest, _round_up(step))


def _ticks(highest: float, step: float) -> list[float]:
    return [step * n for n in range(max(math.ceil(highest / step - 1e-9), 1) + 1)]


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, … and their tenths."""
    if not value > 1e-9:  # also for NaN
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next((power * each for each in (1, 2, 5) if power * each >= value), power * 10)


def _number(value: float) -> str:
    """Tell a number in few characters."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}" if value < 1e15 else f"{value:.0e}"
    return f"{value:.3g}"


def _clock(start: datetime) -> str:
    return local(start).strftime("%H:%M")


# Lanes


@dataclass(frozen=True, slots=True)
class _Cell:
    """What stands in one place of a track, of what went on and of what went wrong there."""

    state: str  # "" where nothing but what went wrong
    wrong: str


def lane(runs: Lane, start: datetime, end: datetime) -> SafeString:
    """Draw what one worker ran from ``start`` to ``end``, beside each other what overlapped.

    What went wrong stands above what went on in the same place, so that neither hides the other.
    """
    tracks = _tracks(runs, start, end)
    height = max(len(tracks), 1) * TRACK
    parts = [
        part
        for n, track in enumerate(tracks)
        for first, last, cell in _joined_cells(track)
        for part in _stretch(n, first, last, cell, start, (end - start) / CELLS)
    ]
    return format_html(
        '<svg class="ddj-lane" width="100%" height="{}" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none" aria-hidden="true">{}</svg>',
        *[height, LANE_WIDTH, height, _joined(parts)],
    )


def _tracks(runs: Lane, start: datetime, end: datetime) -> list[dict[int, _Cell]]:
    """Put each execution into the first track that is free when it begins."""
    span = max((end - start).total_seconds(), 1e-6)
    tracks: list[dict[int, _Cell]] = []
    free: list[datetime] = []
    for run in runs.runs:
        until = run.end or end
        if until < start or run.start > end:
            continue
        number = next((n for n, at in enumerate(free) if at <= run.start), len(free))
        number = min(number, MOST_TRACKS - 1)
        if number == len(free):
            free.append(until)
            tracks.append({})
        free[number] = max(until, free[number])
        first, last = (
            min(max(int((at - start).total_seconds() / span * CELLS), 0), CELLS - 1)
            for at in (run.start, until)
        )
        for cell in range(first, last + 1):
            tracks[number][cell] = _with(tracks[number].get(cell, _Cell("", "")), run.state)
    return tracks


def _with(cell: _Cell, state: str) -> _Cell:
    """Add what one execution came to: of each kind the last in its row is what is shown."""
    if state in _WRONG:
        return _Cell(cell.state, max(cell.wrong, state, key=["", *_WRONG].index))
    return _Cell(max(cell.state, state, key=_rank), cell.wrong)


def _rank(state: str) -> int:
    return _WELL.index(state) if state in _WELL else -1


def _joined_cells(track: Mapping[int, _Cell]) -> Iterable[tuple[int, int, _Cell]]:
    """Yield (first, last, what) of cells that stand side by side and are alike."""
    pending: tuple[int, int, _Cell] | None = None
    for number in sorted(track):
        cell = track[number]
        if pending and pending[1] == number - 1 and pending[2] == cell:
            pending = (pending[0], number, cell)
            continue
        if pending:
            yield pending
        pending = (number, number, cell)
    if pending:
        yield pending


def _stretch(
    track: int, first: int, last: int, cell: _Cell, start: datetime, step: timedelta
) -> Iterable[SafeString]:
    """Yield what went on as a band, and what went wrong above it, or in its place."""
    unit = LANE_WIDTH / CELLS
    times = (local(start + step * first), local(start + step * (last + 1)))
    told = "–".join(f"{at:%H:%M:%S}" for at in times)  # noqa: RUF001
    whole = (1.0, 8.0)
    for state, (y, height) in (
        (cell.state, (5.0, 4.0) if cell.wrong else whole),
        (cell.wrong, (0.5, 4.0) if cell.state else whole),
    ):
        if state:
            yield format_html(
                '<rect class="ddj-bar ddj-fill-{}" x="{}" y="{}" width="{}" height="{}">'
                "<title>{} · {}</title></rect>",
                state if state in (*_WELL, *_WRONG) else "unknown",
                f"{first * unit:.1f}",
                f"{track * TRACK + y:.1f}",
                f"{(last - first + 1) * unit:.1f}",
                height,
                told,
                _NAMES.get(state, state),
            )


def share_bar(due: int, active: int, most: int) -> SafeString:
    """Draw how much an owner has running, and due, beside the others."""
    unit = LANE_WIDTH / max(most, due + active, 1)
    return format_html(
        '<svg class="ddj-lane" width="100%" height="{}" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="ddj-bar ddj-fill-running" x="0" y="1" width="{}" height="8"/>'
        '<rect class="ddj-bar ddj-fill-due" x="{}" y="1" width="{}" height="8"/></svg>',
        *[
            TRACK,
            LANE_WIDTH,
            TRACK,
            *[f"{max(active, 0) * unit:.1f}"] * 2,
            f"{max(due, 0) * unit:.1f}",
        ],
    )
