"""Where a handler is entered, and how it is made to end from outside: in a thread, in a task."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

# Not by its attribute, which is one object for the whole process and may be set up by others.
_set_async_exc = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_set_async_exc.argtypes = [ctypes.c_ulong, ctypes.py_object]
_set_async_exc.restype = ctypes.c_int


class Frame(Protocol):
    """The stretch of a thread or of a task in which a handler runs.

    The watchdog calls these under its lock: ``interrupt`` while the handler is entered, once;
    ``withdraw`` when it is left, in its own thread. ``desert`` is called when nobody waits for it
    any more.
    """

    def interrupt(self, error: type[BaseException]) -> None:
        """Have the handler interrupted where it stands, a thread's by ``error``."""

    def withdraw(self) -> None:
        """Take back an interruption that has not come about yet."""

    def where(self) -> str:
        """Return the stack of what does not end, as far as it can be told."""

    def desert(self) -> object:
        """Have its place taken by another."""


class _Received(BaseException):
    """Raised in place of an error that is not wanted any more."""


class ThreadFrame:
    """The thread in which this is made; ``deserted`` is called when it is not to be counted on.

    The error is raised between two instructions of the thread's Python code: what is inside a
    call of C code (``time.sleep``, a query) ends that first.
    """

    def __init__(self, deserted: Callable[[], object]) -> None:
        self._thread = threading.get_ident()
        self.desert = deserted

    def interrupt(self, error: type[BaseException]) -> None:
        _set_async_exc(self._thread, error)

    def withdraw(self) -> None:
        # Received in its place, not set to NULL: CPython 3.11 and 3.12 take that for an error that
        # is under way, and look for it between all instructions of all threads from then on.
        try:
            _set_async_exc(self._thread, _Received)
            while True:
                pass
        except _Received:
            pass

    def where(self) -> str:
        return stack_of(self._thread)


class TaskFrame:
    """The task that runs now; ``deserted`` is called where the loop itself does not answer."""

    def __init__(self, deserted: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._task = asyncio.current_task()
        self._deserted = deserted
        self._heard = self._left = False

    def interrupt(self, error: type[BaseException]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def withdraw(self) -> None:
        self._left = True

    def where(self) -> str:
        return "" if self._heard else stack_of(self._thread)

    def desert(self) -> None:
        if not self._heard:
            self._deserted()

    def _cancel(self) -> None:
        # On the loop, hence not while the handler's code runs: it is thrown in at its ``await``.
        self._heard = True
        if self._task is not None and not self._left:
            self._task.cancel()


def stack_of(thread: int) -> str:
    """Return where a thread stands, innermost call last; "" for one that has ended."""
    frame = sys._current_frames().get(thread)
    return "" if frame is None else "".join(traceback.format_stack(frame))
