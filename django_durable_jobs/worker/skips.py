"""What a worker that does not lead left to the leader: counted, for whoever compares workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime

from django.db.backends.base.base import BaseDatabaseWrapper

from ..db import BIGINT, current_clock, statements_for, transaction
from ..models import Schedule
from ..registry import Declaration
from ..ticks import course_of, locked

# How often the counts are written, in seconds.
INTERVAL = 60.0
# More ticks of one schedule than this are not counted one by one.
_MOST = 1_000


class Skips:
    """Counts the ticks that came due while another worker led (the seed's nonLeaderSkips).

    In memory of when it last counted: a worker that stops in between counts a minute less.
    """

    def __init__(
        self,
        namespace: str,
        declarations: Sequence[Declaration],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespace = namespace
        self._declarations = {each.name: each for each in declarations}
        self._monotonic = monotonic
        self._next_at = 0.0
        self._since: datetime | None = None

    def reset(self) -> None:
        """Begin anew: what comes due from now on is not left to another leader."""
        self._since, self._next_at = None, 0.0

    def flush(self, connection: BaseDatabaseWrapper) -> None:
        """Write, once a minute, how many ticks of each schedule came due since the last time."""
        if not self._declarations or self._monotonic() < self._next_at:
            return
        self._next_at = self._monotonic() + INTERVAL
        now = current_clock().now(connection)
        since, self._since = self._since, now
        if since is None or since >= now:
            return
        rows = Schedule.objects.using(connection.alias).filter(
            namespace=self._namespace, retired_at__isnull=True, paused_at__isnull=True
        )
        counts = [
            (row.pk, count)
            for row in rows.only("pk", "name", "anchor")
            if (declaration := self._declarations.get(row.name))
            and (count := self._count(declaration, row.anchor, since, now))
        ]
        if counts:
            with transaction(connection.alias):
                list(locked(connection, (pk for pk, _ in counts)).values_list("pk"))
                statements_for(connection).update_rows(
                    Schedule._meta.db_table,
                    {"id": BIGINT, "skips": BIGINT},
                    counts,
                    {"non_leader_skips": "s.non_leader_skips + n.skips"},
                )

    @staticmethod
    def _count(
        declaration: Declaration, anchor: datetime | None, since: datetime, now: datetime
    ) -> int:
        recurrence = course_of(declaration, anchor).recurrence
        if declaration.start is not None:
            since = max(since, declaration.start - datetime.resolution)
        until = now if declaration.end is None else min(now, declaration.end)
        return recurrence.count(since, until, _MOST)[0] if since < until else 0
