"""Stretches of time cut into buckets, and what many durations come to. Arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time up to now: ``seconds`` long, in buckets of ``bucket`` seconds.

    Buckets begin at whole multiples of their length, so that a bar stays what it is from one look
    to the next; the last one is not over yet.
    """

    key: str
    seconds: int
    bucket: int

    @property
    def count(self) -> int:
        return self.seconds // self.bucket

    def start(self, now: datetime) -> datetime:
        """Return the beginning of the first bucket."""
        passed = (now - _EPOCH) // timedelta(seconds=self.bucket)
        end = _EPOCH + timedelta(seconds=self.bucket * (passed + 1))
        return end - timedelta(seconds=self.seconds)

    def index(self, start: datetime, moment: datetime | None) -> int | None:
        """Return the number of the bucket that ``moment`` falls into, None outside of all."""
        if moment is None:
            return None
        number = math.floor((moment - start).total_seconds() / self.bucket)
        return number if 0 <= number < self.count else None


SPANS = {span.key: span for span in (Span("15m", 900, 60), Span("1h", 3_600, 60),
                                     Span("24h", 86_400, 900))}  # fmt: skip


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below or at which ``share`` (0 to 1) of the values lie (nearest rank).

    ``ordered`` ascends, and has at least one value: ValueError otherwise.
    """
    if not ordered:
        raise ValueError("percentile: there is no value; accepted: one or more, ascending.")
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """What many durations come to, in seconds."""

    p50: float
    p95: float
    count: int

    @classmethod
    def of(cls, durations: Sequence[float]) -> Spread | None:
        """Sum up durations in any order; None where there are none."""
        if not durations:
            return None
        ordered = sorted(durations)
        return cls(percentile(ordered, 0.5), percentile(ordered, 0.95), len(ordered))
