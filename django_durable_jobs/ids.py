"""Time-ordered ids, so that new rows sit together in every index."""

from __future__ import annotations

import os
import threading
import time
from datetime import datetime
from uuid import UUID

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """Return a fresh UUID of version 7 (RFC 9562): 48 bits of Unix milliseconds, 74 random bits.

    Later ones of a process are greater, also within a millisecond and when the clock is set back:
    jobs that are put in at once run in the order in which they were given.
    """
    global _last
    value = _marked(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(10), "big"))
    with _lock:
        if value <= _last:
            # A random step: two processes that were forked from one do not go the same way.
            value = _last + 1 + int.from_bytes(os.urandom(4), "big")
        _last = value
    return UUID(int=value)


def first_uuid7_of(moment: datetime) -> UUID:
    """Return the least id that ``uuid7`` can give at ``moment``, an aware time."""
    return UUID(int=_marked(max(int(moment.timestamp() * 1_000), 0), 0))


def _marked(milliseconds: int, rest: int) -> int:
    value = milliseconds << 80 | rest
    value = value & ~(0xF << 76) | 0x7 << 76
    return value & ~(0x3 << 62) | 0x2 << 62
