"""Being asked to stop, once and twice: by signals, by a supervisor, or by having no more to do."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from socket import MSG_DONTWAIT, socket
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

# How often the main thread stops waiting for a moment, in seconds: a signal that comes just as it
# begins to wait for a lock is heard only when that wait ends.
LISTEN_EVERY = 0.25

# How far a stop has gone: claim nothing more and wait for what runs; do not wait any longer.
DRAIN, HURRY = 1, 2
# What a child tells: its options and its code are good, it begins to work.
BEGUN = b"\1"


class Stopper:
    """Have SIGTERM and SIGINT ask for the end, and a second one end the grace.

    A supervisor says over a line which stage *it* has reached. It counts no signal of its child's:
    a service manager may send the first one to both, and that is not the second.

    By queues, since a signal's handler runs in the middle of whatever the main thread does: an
    Event that is set while that very thread waits for it locks up.
    """

    def __init__(self) -> None:
        self.stage = 0  # asked for from outside
        self.asked = False  # from outside, or by what ``ask_after`` waited for
        self._signals = 0
        self._line = -1  # to the supervisor
        self._once: SimpleQueue[None] = SimpleQueue()
        self._again: SimpleQueue[None] = SimpleQueue()
        self._previous: dict[int, Any] = {}

    def reach(self, stage: int) -> None:
        """Ask for the end, at least as urgently as ``stage`` says."""
        self.asked = True
        self.stage = max(self.stage, stage)
        self._once.put(None)
        if self.stage >= HURRY:
            self._again.put(None)

    def reach_as_signalled(self) -> None:
        """Ask for the end as a first signal does, so that the next one is the second."""
        self._signals = max(self._signals, DRAIN)
        self.reach(DRAIN)

    def wait(self) -> None:
        """Wait until somebody asks for the end."""
        while True:
            with suppress(Empty):
                return self._once.get(timeout=LISTEN_EVERY)

    def ask_after(self, wait: Callable[[], object]) -> None:
        """Ask for the end when ``wait`` returns."""
        wait()
        self.asked = True
        self._once.put(None)

    def call_at_second(self, function: Callable[[], object]) -> None:
        """Call ``function`` at the second signal, if there is one before all is over."""
        self._again.get()
        if self.stage >= HURRY:
            function()

    def follow(self, line: int) -> None:
        """Stop as the supervisor at the other end of ``line`` says, or when it is gone."""
        os.set_inheritable(line, False)  # it is not for the processes that handlers start
        self._line = line
        in_background(self._obey, line)

    def begin(self) -> None:
        """Tell the supervisor, if there is one, that this process begins to work."""
        if self._line >= 0:
            with suppress(OSError):  # it is gone
                os.write(self._line, BEGUN)

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._signalled)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._again.put(None)  # for the thread that waits for a second signal: there was none

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.reach(self._signals)

    def _obey(self, line: int) -> None:
        with suppress(ConnectionError):  # it ended and had not read what it was told
            while stage := os.read(line, 1):
                self.reach(stage[0])
        if not self.stage:
            logger.warning("supervisor gone, stopping pid=%s", os.getpid())
        self.reach(DRAIN)


def tell(line: socket, stage: int) -> None:
    """Tell the child that follows the other end of ``line`` how far the stop has gone."""
    with suppress(OSError):  # it has ended
        line.send(bytes([stage]))


def has_begun(line: socket) -> bool:
    """Tell whether the child at the other end of ``line`` has said that it begins to work."""
    with suppress(OSError):  # nothing was said
        return line.recv(1, MSG_DONTWAIT) == BEGUN
    return False


def in_background(function: Callable[..., object], *args: object) -> threading.Thread:
    """Call the function on a thread that does not keep the process from ending."""
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread
