"""Threads that go at the same moment, each on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.db import connections


def race(*runners: Callable[[], Any], timeout: float = 60) -> list[Any]:
    """Call all at once, each in a thread; return what each returned or, as a value, raised."""
    barrier = threading.Barrier(len(runners))
    results: list[Any] = [TimeoutError("still running")] * len(runners)

    def run(number: int) -> None:
        try:
            connections["default"].ensure_connection()
            barrier.wait(timeout)
            results[number] = runners[number]()
        except BaseException as error:
            results[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(runners))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    return results


def meanwhile(runner: Callable[[], Any]) -> Callable[[], Any]:
    """Start a call in a thread; return a function that waits for it and returns its result.

    What it raised is returned as a value.
    """
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(runner())
        except BaseException as error:
            results.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(60)
        return results[0] if results else TimeoutError("still running")

    result.running = thread.is_alive  # type: ignore[attr-defined]
    return result
