"""The gate: asks can_run before the claim, on a thread of its own, outside any lock."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from uuid import UUID

from .. import registry
from ..claims import put_off
from ..db import is_trouble
from ..models import Job
from ..states import State
from .isolation import clean_connections, close_connections, in_fresh_context
from .running import ask
from .scribe import Scribe

logger = logging.getLogger(__name__)

# A yes that no claim used within so many seconds is asked again.
APPROVAL_SECONDS = 5.0
# Nor is a no asked about again for so long, also where the job could not be put off, because
# somebody else holds its row.
REFUSAL_SECONDS = 1.0


class Gate:
    """Keep which jobs may be claimed now, because their can_run said so a moment ago.

    A can_run that takes its time holds up only other questions, never a claim or a settlement.
    """

    def __init__(
        self, using: str, scribe: Scribe, *, longest: float, answered: Callable[[], object]
    ) -> None:
        self._using = using
        self._scribe = scribe
        self._longest = longest
        self._answered = answered
        self._lock = threading.Lock()
        self._closed = False
        self._asked: set[UUID] = set()
        self._approved: dict[UUID, float] = {}
        self._refused: dict[UUID, float] = {}
        self._ask_again_at = math.inf  # when the first no lapses that was met when asking last
        self._questions: SimpleQueue[UUID | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def approved(self) -> frozenset[UUID]:
        """Return the jobs that may be claimed now."""
        now = time.monotonic()
        with self._lock:
            self._approved = {id: until for id, until in self._approved.items() if until > now}
            return frozenset(self._approved)

    @property
    def busy(self) -> bool:
        """Whether an answer is outstanding, or one was given that no claim has used."""
        with self._lock:
            now = time.monotonic()
            return bool(self._asked) or any(until > now for until in self._approved.values())

    def expires_in(self) -> float:
        """Return after how many seconds an answer lapses that stands in the way of a question.

        Infinite where none does.
        """
        with self._lock:
            until = min([*self._approved.values(), self._ask_again_at])
        return max(until - time.monotonic(), 0.0)

    def used(self, ids: Iterable[UUID]) -> None:
        """Forget the approvals of jobs that were claimed."""
        with self._lock:
            for id in ids:
                self._approved.pop(id, None)

    def ask(self, ids: Iterable[UUID]) -> None:
        """Ask about jobs that were not asked about yet; ``answered`` is called after each."""
        ids = list(ids)
        with self._lock:
            now = time.monotonic()
            self._ask_again_at = min(
                (until for id in ids if (until := self._refused.get(id, 0.0)) > now),
                default=math.inf,
            )
            new = [
                id
                for id in ids
                if id not in self._asked
                and self._approved.get(id, 0.0) <= now
                and self._refused.get(id, 0.0) <= now
            ]
            self._asked.update(new)
            if new and self._thread is None:
                # A daemon: a can_run that never answers must not keep the process from ending.
                self._thread = threading.Thread(target=self._work, name="gate", daemon=True)
                self._thread.start()
        for id in new:
            self._questions.put(id)

    def close(self) -> None:
        """Ask nothing more; an answer that is being waited for finds nobody who wants it."""
        self._closed = True
        self._questions.put(None)

    def _work(self) -> None:
        while (id := self._questions.get()) is not None and not self._closed:
            self._ask(id)
        close_connections()

    def _ask(self, id: UUID) -> None:
        may = False
        try:
            may = self._judge(id)
        except Exception as error:
            # A row that cannot be read cannot be judged: the claim takes it, it is asked again
            # there, and it fails as it should. That the database is away, a turn says.
            may = not is_trouble(error)
            if may:
                logger.exception("can_run could not be asked job=%s", id)
        finally:
            now = time.monotonic()
            with self._lock:
                self._asked.discard(id)
                if may:
                    self._approved[id] = now + APPROVAL_SECONDS
                else:
                    self._refused = {i: until for i, until in self._refused.items() if until > now}
                    self._refused[id] = now + REFUSAL_SECONDS
            self._answered()

    def _judge(self, id: UUID) -> bool:
        """Ask about a job, and put it off after a no."""
        with clean_connections():
            job = Job.objects.using(self._using).filter(pk=id, state=State.QUEUED).first()
            handler = registry.get(job.type) if job is not None else None
            if job is None or handler is None or handler.can_run is None:
                return False
            may = in_fresh_context(lambda: ask(handler, job))
        if not may and not self._closed:
            try:
                self._scribe.write(lambda c: put_off(c, job, longest=self._longest))
            except Exception:
                logger.exception("job could not be put off job=%s", id)
        return may
