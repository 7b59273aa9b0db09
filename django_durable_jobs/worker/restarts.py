"""Exit codes, and what a supervisor does about a worker that ended with one: rules only."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

# As a process' parent sees them. RESTART is EX_TEMPFAIL of sysexits.h: start me again.
CLEAN, FAULT, USAGE, RESTART = 0, 1, 2, 75

# After a fault: the first pause and the longest, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
# A worker that ran for so many seconds had started well: its faults are counted anew.
RAN_WELL = 60.0
# One that asks to be restarted sooner than this after its start is slowed, from the second time in
# a row on; by no more than this, since it may have done in that time all that it was to do.
RENEWED_WELL, LONGEST_RENEWAL = 5.0, 10.0

# A process that one of these ends did not hear it yet: while Python starts, nobody listens.
_STOPS = (-signal.SIGTERM, -signal.SIGINT)
_WORSE = (CLEAN, RESTART, FAULT, USAGE)


class Step(Enum):
    """What a supervisor does about a worker that has ended."""

    START = auto()  # again, after a pause
    LEAVE = auto()  # it has done all that it was to do
    AWAIT_CHANGE = auto()  # its code does not start: another attempt would end in the same way
    END_ALL = auto()  # none of them can ever start


@dataclass(frozen=True, slots=True)
class Next:
    """A step, the seconds before it, and how many faults in a row that makes."""

    step: Step
    pause: float = 0.0
    faults: int = 0


def counted(code: int, *, began: bool) -> int:
    """Return what an exit code counts as: one that has begun to work was not used wrongly.

    Its code then is a handler's, by ``os._exit``.
    """
    return FAULT if began and code == USAGE else code


def after_end(
    code: int, *, ran: float, faults: int, burst: bool, reloads: bool, began: bool
) -> Next:
    """Return what comes after a worker that ended unasked with ``code`` (negative: a signal's).

    ``ran`` is for how many seconds it ran, ``faults`` how often in a row it had failed before;
    ``burst`` and ``reloads`` are the options; ``began`` whether it had begun to work. One that was
    stopped behind the supervisor's back ended cleanly, and is replaced like one that failed: it
    may be stopped again at once.
    """
    code = counted(code, began=began)
    if code == USAGE:
        return Next(Step.END_ALL)
    if code == CLEAN and burst:
        return Next(Step.LEAVE)
    if code == RESTART:
        return _renewal(faults + 1) if ran < RENEWED_WELL else Next(Step.START)
    well = ran >= RAN_WELL
    if reloads and code == FAULT and not (began or well):
        return Next(Step.AWAIT_CHANGE)
    if well and code == CLEAN:
        return Next(Step.START)
    faults = 1 if well else faults + 1
    return Next(Step.START, pause_after(faults), faults)


def _renewal(faults: int) -> Next:
    pause = min(pause_after(faults - 1), LONGEST_RENEWAL) if faults > 1 else 0.0
    return Next(Step.START, pause, faults)


def pause_after(faults: int) -> float:
    """Return how many seconds to wait after so many faults in a row: doubled each time."""
    doublings = min(faults - 1, 30)  # more would only make larger numbers
    return min(FIRST_PAUSE * 2.0**doublings, LONGEST_PAUSE)


def worst(codes: Iterable[int]) -> int:
    """Return the exit code of workers that ended with these: wrong usage, fault, restart, clean.

    Whatever is none of these is a fault, except the two signals that ask for a stop.
    """
    known = (CLEAN if code in _STOPS else code for code in codes)
    return max(
        (code if code in _WORSE else FAULT for code in known), key=_WORSE.index, default=CLEAN
    )


def describe(code: int) -> str:
    """Say in words how a process ended, as in "was killed by SIGKILL"."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    if code == RESTART:
        return "asked to be restarted"
    return f"ended with code {code}"
