"""For pytest: the fixture ``durable_jobs``. Nothing of Django is imported until it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import DurableJobs


@pytest.fixture
def durable_jobs(db: None) -> Iterator[DurableJobs]:
    """Run jobs, move their time and assert what was enqueued: see django_durable_jobs.testing."""
    from .testing import DurableJobs

    with DurableJobs() as helpers:
        yield helpers
