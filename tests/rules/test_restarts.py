"""What a supervisor does about a worker that ended, and what several exit codes come to."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_jobs.worker.restarts import (
    LONGEST_PAUSE,
    LONGEST_RENEWAL,
    RAN_WELL,
    RENEWED_WELL,
    Next,
    Step,
    after_end,
    counted,
    describe,
    pause_after,
    worst,
)

START, LEAVE, AWAIT, END = Step.START, Step.LEAVE, Step.AWAIT_CHANGE, Step.END_ALL
WELL, BRIEFLY = RAN_WELL, RAN_WELL - 1


@pytest.mark.parametrize(
    ("code", "ran", "faults", "then"),
    [
        # Faults: killed, failed, or a code that nobody knows.
        (-9, BRIEFLY, 0, Next(START, 1.0, 1)),
        (1, BRIEFLY, 0, Next(START, 1.0, 1)),
        (9, BRIEFLY, 1, Next(START, 2.0, 2)),
        (-11, BRIEFLY, 4, Next(START, 16.0, 5)),
        (1, BRIEFLY, 60, Next(START, LONGEST_PAUSE, 61)),
        # Counted anew after a good run.
        (1, WELL, 5, Next(START, 1.0, 1)),
        (-9, WELL, 5, Next(START, 1.0, 1)),
        # Stopped by somebody else: replaced, but not in a whirl.
        (0, WELL, 3, Next(START, 0.0, 0)),
        (0, BRIEFLY, 0, Next(START, 1.0, 1)),
        (-15, BRIEFLY, 0, Next(START, 1.0, 1)),
        # Asks to be started again.
        (75, BRIEFLY, 0, Next(START, 0.0, 0)),
        (75, RENEWED_WELL, 5, Next(START, 0.0, 0)),
        (75, WELL, 0, Next(START, 0.0, 0)),
        # At once, and again at once, and so on.
        (75, 0.0, 0, Next(START, 0.0, 1)),
        (75, 0.0, 1, Next(START, 1.0, 2)),
        (75, 0.0, 2, Next(START, 2.0, 3)),
        (75, 0.0, 9, Next(START, LONGEST_RENEWAL, 10)),
        # A handler's own exit by that number.
        (2, BRIEFLY, 0, Next(START, 1.0, 1)),
        (2, BRIEFLY, 1, Next(START, 2.0, 2)),
        (2, WELL, 3, Next(START, 1.0, 1)),
    ],
)
def test_a_worker_that_ended_is_started_again(
    code: int, ran: float, faults: int, then: Next
) -> None:
    options: dict[str, Any] = {"burst": False, "reloads": False, "began": True}
    assert after_end(code, ran=ran, faults=faults, **options) == then


@pytest.mark.parametrize("burst", [True, False])
@pytest.mark.parametrize("reloads", [True, False])
def test_wrong_usage_before_a_worker_began_is_wrong_for_all(burst: bool, reloads: bool) -> None:
    options: dict[str, Any] = {"burst": burst, "reloads": reloads, "began": False}
    assert after_end(2, ran=BRIEFLY, faults=0, **options) == Next(END)
    assert (counted(2, began=False), counted(2, began=True), counted(75, began=True)) == (2, 1, 75)


@pytest.mark.parametrize(
    ("code", "burst", "reloads", "began", "then"),
    [
        (0, True, False, True, Next(LEAVE)),
        (0, True, True, True, Next(LEAVE)),
        (1, True, False, True, Next(START, 1.0, 1)),
        (75, True, False, True, Next(START)),
        (1, False, True, False, Next(AWAIT)),
        (1, True, True, False, Next(AWAIT)),
        # Ended by what it worked at: other code is not needed.
        (1, False, True, True, Next(START, 1.0, 1)),
        (-9, False, True, False, Next(START, 1.0, 1)),
        (75, False, True, True, Next(START)),
    ],
)
def test_the_end_of_a_burst_and_code_that_does_not_start(
    code: int, burst: bool, reloads: bool, began: bool, then: Next
) -> None:
    options: dict[str, Any] = {"burst": burst, "reloads": reloads, "began": began}
    assert after_end(code, ran=BRIEFLY, faults=0, **options) == then


def test_what_waited_long_before_its_fault_does_not_wait_for_other_code() -> None:
    then = after_end(1, ran=WELL, faults=0, burst=False, reloads=True, began=False)
    assert then == Next(START, 1.0, 1)


def test_the_pause_doubles_up_to_a_minute() -> None:
    pauses = [pause_after(faults) for faults in range(1, 9)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert pause_after(10_000) == 60


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([], 0),
        ([0, 0], 0),
        ([0, 75], 75),
        ([75, 1, 0], 1),
        ([1, 2, 75], 2),
        ([2, 0], 2),
        # A fault by any other number.
        ([0, -9], 1),
        ([9, 75], 1),
        ([-11, 2], 2),
        # Asked to stop before it listened.
        ([-15, -2, 0], 0),
        ([-15, 75], 75),
    ],
)
def test_several_codes_come_to_the_worst_of_them(codes: list[int], code: int) -> None:
    assert worst(codes) == code


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "was killed by SIGKILL"),
        (-1_000, "was killed by signal 1000"),
        (75, "asked to be restarted"),
        (1, "ended with code 1"),
    ],
)
def test_an_end_is_told_in_words(code: int, words: str) -> None:
    assert describe(code) == words
