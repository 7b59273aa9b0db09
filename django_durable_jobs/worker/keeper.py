"""The keeper: keeps this worker's leases, and takes over from workers that are gone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from ..claims import Repair, repair
from ..db import now_expression, own_connections, statements_for, transaction
from ..models import Worker
from .recovery import recover

logger = logging.getLogger(__name__)

# How often a stretch of the tables is looked through for rows that do not match, in seconds.
REPAIR_INTERVAL = 60.0

Held = list[tuple[UUID, UUID]]  # job id, claim id


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What the keeper asks of, and tells, the scheduler it works for."""

    held: Callable[[], Held]
    lost: Callable[[Iterable[UUID]], object]
    freed: Callable[[], object]
    figures: Callable[[], dict[str, object]]


class Keeper:
    """A thread with a connection of its own, so that no claim or handler can hold up a lease.

    ``lease`` and ``interval`` are in seconds.
    """

    def __init__(
        self,
        worker: UUID,
        namespace: str,
        using: str,
        duties: Duties,
        *,
        lease: float,
        interval: float,
    ) -> None:
        self._worker = worker
        self._namespace = namespace
        self._using = using
        self._duties = duties
        self._lease = lease
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        # After a gap of its own (a paused machine, a database outage) a worker does not judge
        # others until one lease has passed: they had the same gap, and renew first.
        self._kept_at = time.monotonic()
        self._judges_from = self._kept_at
        self._repaired: Repair | None = None
        self._repairs_from = self._kept_at

    def start(self) -> None:
        self._kept_at = self._judges_from = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._lease)

    def _run(self) -> None:
        with own_connections(self._using, idle_limit=self._lease) as connection:
            troubled = False
            while not self._stopped.wait(self._interval):
                try:
                    self.keep(connection)
                    troubled = False
                except Exception as error:
                    if not troubled:
                        logger.warning("heartbeat failed worker=%s error=%s", self._worker, error)
                    troubled = True
                    connection.close()

    def keep(self, connection: BaseDatabaseWrapper) -> None:
        """Renew what this worker holds, say that it lives, and look after the dead."""
        now = time.monotonic()
        if now - self._kept_at > self._lease:
            logger.warning("gap worker=%s seconds=%.1f", self._worker, now - self._kept_at)
            self._judges_from = now + self._lease
        held = self._duties.held()
        with transaction(self._using):
            kept = statements_for(connection).renew(held, lease=self._lease) if held else set()
            beat(connection, self._worker, self._duties.figures())
        self._kept_at = now
        if gone := [claim_id for _, claim_id in held if claim_id not in kept]:
            self._duties.lost(gone)
        if now >= self._judges_from and recover(self._using, self._namespace, but=self._worker):
            self._duties.freed()
        if now >= self._repairs_from:
            self._repair(connection)
            self._repairs_from = time.monotonic() + REPAIR_INTERVAL

    def _repair(self, connection: BaseDatabaseWrapper) -> None:
        """Mend the next stretch of the tables, where something was edited by hand."""
        self._repaired = done = repair(connection, self._namespace, last=self._repaired)
        if done.made or done.dropped or done.freed:
            logger.warning(
                "repaired entries made=%s dropped=%s freed=%s", done.made, done.dropped, done.freed
            )
            self._duties.freed()


def beat(connection: BaseDatabaseWrapper, worker: UUID, figures: dict[str, object]) -> None:
    """Write a sign of life of this worker; one that was thought lost is there again."""
    Worker.objects.using(connection.alias).filter(pk=worker).update(
        heartbeat_at=now_expression(connection), stopped_at=None, **figures
    )
