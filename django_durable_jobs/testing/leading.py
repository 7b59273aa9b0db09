"""Firing schedules in the calling thread: a leader's turns, for the length of one walk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NoReturn
from uuid import UUID

from ..db import statements_for, transaction
from ..errors import DurableJobsError, UnknownSchedule
from ..parameters import did_you_mean, shown
from ..registry import Declaration, schedules
from ..ticker import Ticker
from ..ticks import Decision
from .savepoints import as_if_committed


def chosen(wanted: bool | Iterable[str]) -> list[Declaration]:
    """Return the declared schedules that are meant: all, none, or those of these names."""
    if isinstance(wanted, str):
        raise TypeError(f"schedules is the text {wanted!r}; accepted: True, or a list of names.")
    if isinstance(wanted, bool):
        return schedules.all() if wanted else []
    found = []
    for name in wanted:
        declaration = schedules.get(name)
        if declaration is None:
            near = did_you_mean(name, [each.name for each in schedules.all()])
            raise UnknownSchedule(f"No schedule {shown(name)} is declared{near}.")
        found.append(declaration)
    return found


class Leader:
    """Leads a namespace: it fires what is due whenever it is told to."""

    def __init__(
        self,
        namespace: str,
        using: str,
        worker: UUID,
        declarations: Iterable[Declaration],
        epoch: int,
        *,
        on_commit: bool,
    ) -> None:
        self._ticker = _Ticker(namespace, using, worker, declarations)
        self._epoch = epoch
        self._on_commit = on_commit
        as_if_committed(lambda: self._ticker.declare(epoch), on_commit=on_commit)

    def fire(self) -> None:
        """Note which runs have ended, and put in the jobs of all ticks that are due."""
        while as_if_committed(self._turn, on_commit=self._on_commit) == 0.0:
            pass

    def next_fire(self, after: datetime) -> datetime | None:
        """Return when the next tick is due."""
        return self._ticker.next_fire(after)

    def _turn(self) -> float | None:
        return self._ticker.turn(self._epoch)


@contextmanager
def leading(
    namespace: str,
    using: str,
    worker: UUID,
    declarations: list[Declaration],
    *,
    on_commit: bool,
) -> Iterator[Leader | None]:
    """Lead the namespace inside the block; None where there is nothing to fire.

    Raises DurableJobsError (code ``led-already``) where a worker leads.
    """
    if not declarations:
        yield None
        return
    with transaction(using) as connection:
        epoch = statements_for(connection).take_lead(namespace, worker, lease=1.0)
    if epoch is None:
        raise DurableJobsError(
            f"A worker leads the namespace {namespace!r}: it fires the schedules, not this test.",
            code="led-already",
        )
    try:
        yield Leader(namespace, using, worker, declarations, epoch, on_commit=on_commit)
    finally:
        with transaction(using) as connection:
            statements_for(connection).give_up_lead(namespace, epoch)


class _Ticker(Ticker):
    """A tick that cannot be put in is the test's to hear of, at once."""

    def _failed(self, epoch: int, decision: Decision, error: Exception) -> NoReturn:
        raise error
