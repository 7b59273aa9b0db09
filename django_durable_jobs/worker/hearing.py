"""What a worker hears from its own process and from the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from .. import registry, signals
from ..models import Job
from ..namespaces import STOP


class Hearing:
    """Call what is to be done when this process or the database has something to say.

    ``wake`` when something was enqueued in the namespace, ``stop`` with the claims of jobs that
    are to stop, ``handlers_changed`` when a handler was registered or taken back.
    """

    def __init__(
        self,
        namespace: str,
        *,
        wake: Callable[[], object],
        stop: Callable[[Iterable[UUID]], object],
        handlers_changed: Callable[[], object],
    ) -> None:
        self._namespace = namespace
        self._wake = wake
        self._stop = stop
        self._handlers_changed = handlers_changed
        self._forget: Callable[[], object] = lambda: None

    def __enter__(self) -> Hearing:
        signals.wake_listeners.append(self.heard)
        self._forget = registry.on_change(self._handlers_changed)
        return self

    def __exit__(self, *error: object) -> None:
        signals.wake_listeners.remove(self.heard)
        self._forget()

    def heard(self, message: str) -> None:
        """Take a message as ``namespaces`` sends it: a namespace ("" for any), maybe a claim."""
        namespace, _, claim = message.partition(STOP)
        if namespace not in ("", self._namespace):
            return
        if claim_id := Job.parse_id(claim):
            self._stop([claim_id])
        else:
            self._wake()
