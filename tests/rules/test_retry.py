"""What follows a failed attempt is decided by rule."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_jobs.retry import (
    Decision,
    Discard,
    Retry,
    RetryPolicy,
    decide,
    repeats_interrupted,
)

YEAR = 366 * 86_400.0


def top() -> float:
    return 1.0


def half() -> float:
    return 0.5


def broken_backoff(attempt: int, exception: BaseException) -> float:
    raise LookupError("gone")


def decided(
    exception: BaseException, attempt: int = 1, granted: int | None = None, **policy: Any
) -> Decision:
    made = RetryPolicy(**policy)
    return decide(made, attempt, max_attempts=granted, exception=exception, random=half)


@pytest.mark.parametrize(
    ("attempt", "longest"),
    [(1, 2.0), (2, 4.0), (3, 8.0), (11, 2048.0), (12, 3600.0), (10**9, 3600.0)],
)
def test_the_default_doubles_up_to_an_hour_with_full_jitter(attempt: int, longest: float) -> None:
    policy = RetryPolicy(max_attempts=3)
    assert policy.delay(attempt, Exception(), random=top) == (longest, "")
    assert policy.delay(attempt, Exception(), random=half) == (longest / 2, "")
    assert policy.delay(attempt, Exception(), random=lambda: 0.0) == (0.0, "")


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [
        (5, 5.0),
        (0, 0.0),
        (1.5, 1.5),
        (timedelta(minutes=2), 120.0),
        (lambda attempt, exception: attempt * 10, 30.0),
        (lambda attempt, exception: timedelta(seconds=attempt), 3.0),
        (lambda attempt, exception: len(str(exception)), 4.0),
        (10**400, YEAR),
        (lambda attempt, exception: 1e300, YEAR),
    ],
)
def test_a_backoff_of_ones_own_is_followed(backoff: Any, seconds: float) -> None:
    assert RetryPolicy(backoff=backoff).delay(3, ValueError("four"), random=top)[0] == seconds


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (float("nan"), "ValueError: backoff is nan"),
        (float("inf"), "ValueError: backoff is inf"),
        (-1, "ValueError: backoff is -1"),
        (None, "TypeError: backoff is of type NoneType"),
        ("5", "TypeError: backoff is of type str; accepted: a timedelta or seconds."),
        (True, "TypeError: backoff is of type bool"),
    ],
)
def test_a_backoff_that_makes_no_sense_gives_way_to_the_default(returned: Any, words: str) -> None:
    def backoff(attempt: int, exception: BaseException) -> Any:
        return returned

    decision = decided(ValueError(), max_attempts=2, backoff=backoff)
    assert decision.retry_after == 1.0
    assert words in decision.note


YEAR_AND_A_BIT = timedelta(days=366, seconds=1)


@pytest.mark.parametrize(
    ("time", "told"),
    [
        (10**400, "about 1e400"),
        (10**9_000, "about 1e9000"),
        (1e300, "1e+300"),
        (31_622_401, "31622401"),
        (YEAR_AND_A_BIT, "366 days, 0:00:01"),
        (timedelta.max, "999999999 days, 23:59:59.999999"),
    ],
    ids=["e400", "e9000", "float", "second", "timedelta", "longest"],
)
def test_a_time_beyond_a_year_is_cut_and_said_to_be(time: Any, told: str) -> None:
    for decision, name in (
        (decided(Retry(after=time), max_attempts=2), "after"),
        (decided(ValueError(), max_attempts=2, backoff=time), "backoff"),
        (decided(ValueError(), max_attempts=2, backoff=lambda attempt, error: time), "backoff"),
    ):
        assert decision == Decision(retry_after=YEAR, note=f"{name} is {told}, cut to 366 days")
    assert decided(Retry(after=366 * 86_400)) == Decision()
    assert decided(Retry(after=366 * 86_400), max_attempts=2) == Decision(retry_after=YEAR)


def test_a_backoff_that_raises_gives_way_to_the_default() -> None:
    decision = decided(ValueError(), max_attempts=2, backoff=broken_backoff)
    assert decision.retry_after == 1.0
    assert decision.note == "backoff failed, the default was used (LookupError: gone)"


@pytest.mark.parametrize(
    ("exception", "attempt", "granted", "policy", "retry_after"),
    [
        (ValueError(), 1, 1, {}, None),
        (ValueError(), 1, 3, {"max_attempts": 3, "backoff": 7}, 7.0),
        (ValueError(), 2, 3, {"max_attempts": 3, "backoff": 7}, 7.0),
        (ValueError(), 3, 3, {"max_attempts": 3, "backoff": 7}, None),
        (ValueError(), 4, 3, {"max_attempts": 3, "backoff": 7}, None),
        # an operator granted one more
        (ValueError(), 3, 4, {"max_attempts": 3, "backoff": 7}, 7.0),
        (ValueError(), 1, 2, {"max_attempts": 1}, None),
        # only what was declared
        (ValueError(), 1, 3, {"max_attempts": 3, "retry_on": (OSError,)}, None),
        (TimeoutError(), 1, 3, {"max_attempts": 3, "retry_on": (OSError,), "backoff": 1}, 1.0),
        (TimeoutError(), 1, 3, {"max_attempts": 3, "retry_on": OSError, "backoff": 1}, 1.0),
        (SystemExit(), 1, 3, {"max_attempts": 3}, None),
        (SystemExit(), 1, 3, {"max_attempts": 3, "retry_on": SystemExit, "backoff": 1}, 1.0),
        (ValueError(), 1, 3, {"max_attempts": 3, "retry_on": ()}, None),
        # asked for by the handler
        (Retry(), 1, 3, {"max_attempts": 3, "retry_on": (OSError,), "backoff": 7}, 7.0),
        (Retry(), 1, 3, {"max_attempts": 3}, 1.0),
        (Retry(after=90), 1, 3, {"max_attempts": 3, "backoff": 7}, 90.0),
        (Retry(timedelta(hours=1)), 1, 3, {"max_attempts": 3}, 3600.0),
        (Retry(after=0), 1, 3, {"max_attempts": 3}, 0.0),
        (Retry(after=90), 3, 3, {"max_attempts": 3}, None),
        (Retry(after=90), 1, 1, {}, None),
        (Retry(after=90), 1, 2, {"max_attempts": 1}, 90.0),
    ],
)
def test_another_attempt_is_made_only_when_declared_and_granted(
    exception: BaseException,
    attempt: int,
    granted: int,
    policy: dict[str, Any],
    retry_after: float | None,
) -> None:
    decision = decided(exception, attempt, granted, **policy)
    assert decision == Decision(retry_after=retry_after)


def test_a_discarded_job_is_not_tried_again() -> None:
    assert decided(Discard("no such customer"), max_attempts=9) == Decision(code="discarded")


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), "soon", True])
def test_a_retry_after_nonsense_falls_back_to_the_backoff(after: Any) -> None:
    decision = decided(Retry(after=after), max_attempts=2, backoff=7)
    assert decision.retry_after == 7.0
    assert decision.note.startswith("Retry had no sensible time, the backoff was used (after is")


def test_the_message_of_a_retry_stays_short() -> None:
    absurd: Any = "x" * 10**6
    assert len(str(Retry(after=absurd))) < 150


@given(
    after=st.none() | st.floats() | st.integers() | st.text() | st.timedeltas(),
    returned=st.none() | st.floats() | st.integers() | st.text() | st.timedeltas(),
    attempt=st.integers(min_value=1, max_value=10**12),
)
def test_no_answer_of_foreign_code_loses_the_job(after: Any, returned: Any, attempt: int) -> None:
    decision = decided(
        Retry(after=after), attempt, attempt + 1, backoff=lambda attempt, exception: returned
    )
    assert decision.retry_after is not None
    assert 0 <= decision.retry_after <= YEAR


@pytest.mark.parametrize(
    ("declared", "default", "max_attempts", "attempt", "repeats"),
    [
        (None, "keep", 3, 1, False),
        (None, "requeue", 3, 1, True),
        ("keep", "requeue", 3, 1, False),
        ("requeue", "keep", 3, 1, True),
        ("requeue", "keep", 3, 3, False),
        ("requeue", "requeue", 1, 1, False),
    ],
)
def test_an_interrupted_job_is_repeated_only_when_declared(
    declared: Any, default: str, max_attempts: int, attempt: int, repeats: bool
) -> None:
    policy = RetryPolicy(max_attempts=max_attempts, on_interrupt=declared)
    for granted in (max_attempts, None):
        asked = repeats_interrupted(policy, attempt, max_attempts=granted, default=default)
        assert asked is repeats


def test_one_more_attempt_by_an_operator_is_no_policy() -> None:
    policy = RetryPolicy(on_interrupt="requeue")
    assert not repeats_interrupted(policy, 1, max_attempts=2, default="requeue")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts is 0; accepted: a whole number"),
        ({"max_attempts": True}, ValueError, "max_attempts is True"),
        ({"max_attempts": "3"}, ValueError, "max_attempts is '3'"),
        ({"backoff": "5"}, TypeError, "backoff is of type str"),
        ({"backoff": -1}, ValueError, "backoff is -1; accepted: 0 seconds or more"),
        ({"backoff": True}, TypeError, "backoff is of type bool"),
        ({"retry_on": ("x",)}, TypeError, "retry_on holds 'x'; accepted: exception classes"),
        ({"retry_on": int}, TypeError, "retry_on holds <class 'int'>"),
        ({"on_interrupt": "retry"}, ValueError, "accepted: 'keep' or 'requeue'"),
    ],
)
def test_a_policy_without_sense_is_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        RetryPolicy(**options)


@pytest.mark.parametrize(
    ("exception", "text"),
    [
        (Retry(), "A retry was asked for."),
        (Retry(after=5), "A retry was asked for after 5."),
        (Retry(after=timedelta(hours=2)), "A retry was asked for after 2:00:00."),
        (Retry(after=-(10**9_000)), "A retry was asked for after about -1e9000."),
        (Discard("no such customer"), "no such customer"),
        (Discard(), "The job was discarded."),
    ],
)
def test_the_exceptions_say_what_they_are_and_survive_copying(
    exception: Exception, text: str
) -> None:
    for each in (exception, copy.copy(exception), pickle.loads(pickle.dumps(exception))):
        assert str(each) == text
        assert vars(each) == vars(exception)


def test_a_requeue_takes_none_of_the_declared_attempts_away() -> None:
    policy = RetryPolicy(max_attempts=5, backoff=7, on_interrupt="requeue")

    # Requeued after its first attempt was interrupted: the row grants two, the policy five.
    assert decide(policy, 2, max_attempts=2, exception=ValueError()).retry_after == 7
    assert repeats_interrupted(policy, 2, max_attempts=2, default="keep")
    assert decide(policy, 5, max_attempts=2, exception=ValueError()).retry_after is None
