"""All of it in one object, for pytest's fixture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import Self

from .asserting import assert_enqueued, assert_not_enqueued, captured_jobs
from .clocks import TestClock, clock
from .running import arun_due, arun_until, run_due, run_until


class DurableJobs:
    """The helpers of this package; what they put in place goes at the end of the block."""

    run_due = staticmethod(run_due)
    run_until = staticmethod(run_until)
    arun_due = staticmethod(arun_due)
    arun_until = staticmethod(arun_until)
    assert_enqueued = staticmethod(assert_enqueued)
    assert_not_enqueued = staticmethod(assert_not_enqueued)
    captured = staticmethod(captured_jobs)

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def clock(
        self,
        start: datetime | None = None,
        *,
        follower: Callable[[datetime], object] | None = None,
    ) -> TestClock:
        """Put a clock in place for the rest of the test, as ``testing.clock`` does for a block."""
        return self._stack.enter_context(clock(start, follower=follower))
