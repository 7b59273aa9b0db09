"""Leading a namespace: one worker fires its schedules and prunes, under a lease with an epoch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from ..audit import FAILURE, SUCCESS, Put, audit, sent_by
from ..db import own_connections, statements_for, transaction
from ..loops import Reconciler
from ..namespaces import announce
from ..registry import Declaration
from ..retention import Pruner
from ..ticker import Ticker
from ..ticks import LeadershipLost, TickPruner
from .skips import Skips
from .trouble import Backoff, Trouble

logger = logging.getLogger(__name__)

# How often a candidate looks whether there is a leader, and the leader whether a schedule has been
# steered from outside, in seconds.
LOOK_INTERVAL = 1.0
# How long the leader pauses between two parts of a chore, in seconds: others want to write as well.
CHORE_PAUSE = 0.05


class Chore(Protocol):
    """What a leader does bit by bit, while nothing is due."""

    def step(self, connection: BaseDatabaseWrapper) -> bool:
        """Do the next part, if it is time; tell whether there is more right now."""


class Leading:
    """A worker as a candidate, and as the leader: then a thread with a connection of its own.

    ``look`` is the candidate's part: the keeper calls it. ``lease`` and ``interval`` (how often it
    is renewed) are in seconds.
    """

    def __init__(
        self,
        worker: UUID,
        namespace: str,
        using: str,
        declarations: Sequence[Declaration],
        *,
        lease: float,
        interval: float,
        put: Put | None,
        trouble: Trouble,
    ) -> None:
        self._worker = worker
        self._namespace = namespace
        self._using = using
        self._declarations = declarations
        self._lease = lease
        self._interval = interval
        self._put = put
        self._trouble = trouble
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._skips = Skips(namespace, declarations)
        # Each of them waits for its next time after a failure.
        self._chores: Sequence[Chore] = (Reconciler(), Pruner(namespace), TickPruner(namespace))
        self.epoch: int | None = None  # under which it leads, None where it does not

    def look(self, connection: BaseDatabaseWrapper) -> float:
        """Become leader if there is none; return after how many seconds to look again."""
        if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
            return self._interval
        lead = statements_for(connection).leader(self._namespace)
        if lead is not None and lead.worker is not None and lead.seconds > 0:
            self._skips.flush(connection)
            return min(LOOK_INTERVAL, self._interval, lead.seconds + 0.01)
        with transaction(self._using) as inside:
            statements = statements_for(inside)
            epoch = statements.take_lead(self._namespace, self._worker, lease=self._lease)
        if epoch is not None:
            self._begin(epoch)
        return min(LOOK_INTERVAL, self._interval)

    def stop(self) -> None:
        """Give the lead up, if it has it; returns at once: see ``join``."""
        self._stopped.set()

    def join(self) -> None:
        """Wait until it leads no longer, a lease at most."""
        if self._thread is not None:
            self._thread.join(timeout=self._lease)

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._skips.reset()
        self._thread = threading.Thread(target=self._run, args=(epoch,), name="leader", daemon=True)
        self._thread.start()

    def _run(self, epoch: int) -> None:
        metadata = {"worker": self._worker, "epoch": epoch}
        with own_connections(self._using, lease=self._lease) as connection, sent_by(self._put):
            audit("leader.acquired", metadata=metadata)
            try:
                self._lead(connection, epoch)
                self._give_up(epoch)
                outcome, reason = SUCCESS, "stopped"
            except LeadershipLost:
                outcome, reason = FAILURE, "lost"
                logger.warning("leadership lost worker=%s epoch=%s", self._worker, epoch)
            except Exception as error:
                # Its lease runs out, and somebody else leads.
                outcome, reason = FAILURE, "failed"
                self._trouble.failed("leader", error)
            finally:
                self.epoch = None
            audit("leader.lost", outcome=outcome, reason=reason, metadata=metadata)

    def _lead(self, connection: BaseDatabaseWrapper, epoch: int) -> None:
        ticker = Ticker(self._namespace, self._using, self._worker, self._declarations)
        duties = [ticker.declare]
        began = renewed = time.monotonic()
        retired = False
        backoff = Backoff()
        pause = 0.0
        while not self._stopped.wait(pause):
            try:
                if time.monotonic() - renewed >= self._interval:
                    self._renew(epoch)
                    renewed = time.monotonic()
                while duties:
                    duties[0](epoch)
                    del duties[0]
                if not retired and time.monotonic() - began >= self._lease:
                    ticker.retire(epoch)
                    retired = True
                due_in = ticker.turn(epoch)
                pause = self._rest(connection, due_in)
            except LeadershipLost:
                raise
            except Exception as error:
                self._trouble.failed("leader", error)
                with suppress(Exception):  # whatever the driver says: it opens a new one
                    connection.close()
                if time.monotonic() - renewed > self._lease:
                    raise LeadershipLost from error
                pause = backoff.next()
            else:
                self._trouble.over("leader")
                backoff.reset()

    def _renew(self, epoch: int) -> None:
        with transaction(self._using) as connection:
            statements = statements_for(connection)
            if not statements.keep_lead(self._namespace, epoch, lease=self._lease):
                raise LeadershipLost

    def _rest(self, connection: BaseDatabaseWrapper, due_in: float | None) -> float:
        """See to the chores while nothing is due; return for how long to wait then."""
        longest = min(LOOK_INTERVAL if self._declarations else self._interval, self._interval)
        pause = longest if due_in is None else min(due_in, longest)
        if pause > 0 and any([self._step(chore, connection) for chore in self._chores]):
            return min(pause, CHORE_PAUSE)
        return pause

    def _step(self, chore: Chore, connection: BaseDatabaseWrapper) -> bool:
        """Do a part of a chore; tell whether there is more. One that fails holds up no tick."""
        try:
            return chore.step(connection)
        except Exception as error:
            self._trouble.failed(type(chore).__name__, error)
            with suppress(Exception):
                connection.close()
            return False

    def _give_up(self, epoch: int) -> None:
        with transaction(self._using) as connection:
            if not statements_for(connection).give_up_lead(self._namespace, epoch):
                raise LeadershipLost
            announce(self._namespace, self._using)
