"""A worker inside the test's process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_durable_jobs.conf import settings as durable_settings
from django_durable_jobs.registry import handlers
from django_durable_jobs.worker import Scheduler

# What handlers raise on purpose is logged.
logging.getLogger("django_durable_jobs").addHandler(logging.NullHandler())


@pytest.fixture
def own_handlers() -> Iterator[None]:
    """Forget after the test what it has registered."""
    with handlers.preserved():
        yield


@pytest.fixture
def keys(settings: Any) -> Iterator[Callable[..., None]]:
    """Let workers look often, by polling alone; return what changes further settings."""

    def change(**values: Any) -> None:
        settings.DURABLE_JOBS = {**settings.DURABLE_JOBS, **values}

    settings.DURABLE_JOBS = {"POLL_INTERVAL": 0.1, "LISTEN": False}
    yield change
    durable_settings.reset()


@pytest.fixture
def make(keys: object, own_handlers: None) -> Iterator[Callable[..., Scheduler]]:
    """Make workers that are shut down at the end."""
    made: list[Scheduler] = []

    def make_one(**options: Any) -> Scheduler:
        made.append(Scheduler(**options))
        return made[-1]

    yield make_one
    for scheduler in made:
        scheduler.shutdown(grace=0)
