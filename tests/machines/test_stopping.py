"""Being asked to stop: what a second signal does, and what happens without one."""

from __future__ import annotations

import os
import signal
import threading
from socket import socketpair

import pytest

from django_durable_jobs.worker.stopping import DRAIN, HURRY, Stopper, has_begun


def test_where_it_ends_by_itself_the_first_signal_is_the_second() -> None:
    stopper = Stopper()
    with stopper:
        stopper.reach_as_signalled()
        assert stopper.stage == DRAIN
        signal.raise_signal(signal.SIGINT)
    assert stopper.stage == HURRY


def test_a_supervisor_that_is_gone_with_something_unread_is_gone() -> None:
    ours, its = socketpair()
    stopper = Stopper()
    stopper.follow(os.dup(ours.fileno()))
    stopper.begin()
    its.close()
    stopper.wait()
    assert stopper.stage == DRAIN
    stopper.begin()  # nobody is there to be told
    ours.close()


def test_a_line_tells_whether_the_other_end_has_begun_also_after_its_end() -> None:
    ours, its = socketpair()
    with ours, its:
        assert not has_begun(ours)
        stopper = Stopper()
        stopper.follow(os.dup(its.fileno()))
        stopper.begin()
        its.close()
        assert has_begun(ours)


@pytest.mark.parametrize(("signals", "calls"), [(0, 0), (1, 0), (2, 1)])
def test_what_is_for_a_second_signal_is_called_at_that_and_not_at_the_end(
    signals: int, calls: int
) -> None:
    called: list[str] = []
    stopper = Stopper()
    with stopper:
        thread = threading.Thread(
            target=stopper.call_at_second, args=[lambda: called.append("hurry")], daemon=True
        )
        thread.start()
        for _ in range(signals):
            signal.raise_signal(signal.SIGTERM)
        if calls:
            thread.join(30)
    thread.join(30)
    assert not thread.is_alive()
    assert len(called) == calls
