"""The keeper: keeps this worker's leases, and takes over from workers and leaders that are gone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from ..audit import Put, sent_by
from ..claims import EXPIRED_AT_ONCE, Repair, repair
from ..db import current_clock, now_expression, own_connections, statements_for, transaction
from ..models import Worker
from ..registry import schedules
from .leading import Leading
from .recovery import bury_the_gone, end_late_leases
from .trouble import Trouble

logger = logging.getLogger(__name__)

# How often a stretch of the tables is looked through for rows that do not match, in seconds.
REPAIR_INTERVAL = 60.0
# After a heartbeat that failed, in seconds.
RETRY_INTERVAL = 1.0

Held = list[tuple[UUID, UUID]]  # job id, claim id


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What the keeper asks of, and tells, the scheduler it works for."""

    held: Callable[[], Held]
    lost: Callable[[Iterable[UUID]], object]
    stop: Callable[[Iterable[UUID]], object]
    freed: Callable[[], object]
    figures: Callable[[], dict[str, object]]
    put: Put | None = None  # who tells of what the keeper sends to the audit trail


class Keeper:
    """A thread with a connection of its own, so that no claim or handler can hold up a lease.

    On SQLite all the same, where there is one write lock: a transaction that a handler keeps open
    for longer than a lease costs this worker what it holds.

    ``lease`` and ``interval`` are in seconds; one that ``leads`` not is no candidate for leader.
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
        leads: bool = True,
        trouble: Trouble | None = None,
    ) -> None:
        self._worker = worker
        self._namespace = namespace
        self._using = using
        self._duties = duties
        self._lease = lease
        self._interval = interval
        self._trouble = trouble or Trouble(worker)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        # After a gap of its own (a paused machine, a database outage) a worker does not judge
        # others until one lease has passed: they had the same gap, and renew first. Told by the
        # database's clock, since a host's may stand still while its machine sleeps.
        self._kept_at: datetime | None = None
        self._judges_from = datetime.max.replace(tzinfo=UTC)
        self._gap = max(lease - interval, 1.5 * interval)
        self._in_haste = False
        self._repaired: Repair | None = None
        self._repairs_from = 0.0
        self._leads = leads
        self._leading: Leading | None = None

    @property
    def is_leader(self) -> bool:
        return self._leading is not None and self._leading.epoch is not None

    def start(self) -> None:
        if self._leads:
            self._leading = Leading(
                self._worker,
                self._namespace,
                self._using,
                schedules.take(),
                lease=self._lease,
                interval=self._interval,
                put=self._duties.put,
                trouble=self._trouble,
            )
        self._thread.start()

    def abdicate(self) -> None:
        """Lead no more, and become no leader; returns at once."""
        self._leads = False
        if self._leading is not None:
            self._leading.stop()

    def stop(self) -> None:
        self._stopped.set()
        self.abdicate()
        if self._thread.is_alive():
            self._thread.join(timeout=self._lease)
        if self._leading is not None:
            self._leading.join()
            self._leading = None
            schedules.release()

    def _run(self) -> None:
        with (
            own_connections(self._using, lease=self._lease) as connection,
            sent_by(self._duties.put),
        ):
            beat_at = time.monotonic() + self._interval
            pause = 0.0
            while not self._stopped.wait(pause):
                look_in = self._interval
                try:
                    if time.monotonic() >= beat_at:
                        self.keep(connection)
                        beat_at = time.monotonic() + (0 if self._in_haste else self._interval)
                    if self._leading is not None:
                        look_in = self._leading.look(connection)
                except Exception as error:
                    self._trouble.failed("heartbeat", error)
                    # Before its leases run out; they were not renewed just now.
                    beat_at = time.monotonic() + min(self._interval, RETRY_INTERVAL)
                    with suppress(Exception):  # whatever the driver says, the next beat goes on
                        connection.close()
                else:
                    self._trouble.over("heartbeat")
                pause = min(look_in, max(0.0, beat_at - time.monotonic()))

    def keep(self, connection: BaseDatabaseWrapper) -> None:
        """Renew what this worker holds, say that it lives, and look after the dead."""
        held = self._duties.held()
        with transaction(self._using):
            statements = statements_for(connection)
            kept = statements.renew(held, lease=self._lease) if held else set()
            asked = statements.stop_requests(held) if held else set()
            beat(connection, self._worker, self._duties.figures())
        if asked:
            self._duties.stop(asked)
        now = current_clock().now(connection)
        self._mind_the_gap(now)
        if gone := [claim_id for _, claim_id in held if claim_id not in kept]:
            self._duties.lost(gone)
        found = bury_the_gone(self._using, self._namespace, but=self._worker)
        late = end_late_leases(self._using, self._namespace) if now >= self._judges_from else 0
        if found + late:
            self._duties.freed()
        self._in_haste = late >= EXPIRED_AT_ONCE
        if time.monotonic() >= self._repairs_from:
            self._repair(connection)
            self._repairs_from = time.monotonic() + REPAIR_INTERVAL

    def _mind_the_gap(self, now: datetime) -> None:
        """Take note of this sign of life, and of how long after the last one it came."""
        if self._kept_at is None:
            self._judges_from = now + timedelta(seconds=self._interval)
        elif (gap := (now - self._kept_at).total_seconds()) > self._gap:
            logger.warning("gap worker=%s seconds=%.1f", self._worker, gap)
            self._judges_from = now + timedelta(seconds=self._lease)
        self._kept_at = now

    def _repair(self, connection: BaseDatabaseWrapper) -> None:
        """Mend the next stretch of the tables, where something was edited by hand."""
        self._repaired = done = repair(connection, self._namespace, last=self._repaired)
        if done.made or done.dropped or done.freed or done.ended:
            logger.warning(
                "repaired made=%s dropped=%s freed=%s ended=%s",
                *(done.made, done.dropped, done.freed, done.ended),
            )
            self._duties.freed()


def beat(connection: BaseDatabaseWrapper, worker: UUID, figures: dict[str, object]) -> None:
    """Write a sign of life of this worker; one that was thought lost is there again."""
    Worker.objects.using(connection.alias).filter(pk=worker).update(
        heartbeat_at=now_expression(connection), stopped_at=None, **figures
    )
