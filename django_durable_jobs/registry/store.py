"""The registry: which handler serves a type, told to those who listen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import DuplicateHandler
from .handler import Handler, name_of

logger = logging.getLogger(__name__)

_NOWHERE = ("<locals>", "<lambda>")  # names that do not tell one function from another


class Registry:
    """Know the handlers by type; any thread may register and look up.

    Listeners are called after a change, outside the lock, in the thread that made it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[str, Handler] = {}
        self._listeners: dict[object, Callable[[], object]] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Return a number that grows with each change."""
        return self._version

    def get(self, type: str) -> Handler | None:
        """Return the handler of this type or alias."""
        return self._handlers.get(type)

    def types(self) -> frozenset[str]:
        """Return all types and aliases that are registered."""
        with self._lock:
            return frozenset(self._handlers)

    def handlers(self) -> list[Handler]:
        """Return the handlers, each once, by type."""
        with self._lock:
            return sorted({*self._handlers.values()}, key=lambda handler: handler.type)

    def add(self, handler: Handler) -> None:
        """Register the handler for all its types, or raise DuplicateHandler and change nothing.

        One whose function is the same, or the same by name after its module was reloaded, is
        replaced, with all its types.
        """
        with self._lock:
            others = {self._handlers[t] for t in handler.types if t in self._handlers}
            for other in others:
                if not is_same(other.function, handler.function):
                    taken = next(t for t in handler.types if t in other.types)
                    raise DuplicateHandler(
                        f"The type {taken!r} has the handler {name_of(other.function)}; "
                        f"{name_of(handler.function)} needs a type of its own."
                    )
            kept = {t: each for t, each in self._handlers.items() if each not in others}
            self._handlers = kept | dict.fromkeys(handler.types, handler)
            self._version += 1
        self._tell()

    def remove(self, handler: Handler) -> bool:
        """Unregister this very handler; return False where it was gone or replaced already."""
        with self._lock:
            kept = {t: each for t, each in self._handlers.items() if each is not handler}
            if len(kept) == len(self._handlers):
                return False
            self._handlers = kept
            self._version += 1
        self._tell()
        return True

    def on_change(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back after each change; return a function that ends this, idempotent."""
        key = object()
        with self._lock:
            self._listeners[key] = callback

        def remove() -> None:
            with self._lock:
                self._listeners.pop(key, None)

        return remove

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore the handlers of now at the end: for tests."""
        before = self._handlers
        try:
            yield
        finally:
            with self._lock:
                self._handlers = before
                self._version += 1
            self._tell()

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            try:
                listener()
            except Exception:
                logger.exception("registry.listener_failed")


def is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Tell whether these are one function, perhaps from before and after a reload."""
    if one is other or one == other:  # bound methods are made anew each time, but equal
        return True
    qualname = getattr(one, "__qualname__", "")
    if not qualname or any(part in qualname for part in _NOWHERE):
        return False
    return name_of(one) == name_of(other)


handlers = Registry()
