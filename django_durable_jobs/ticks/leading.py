"""What a leader writes: nothing, unless it still leads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db.backends.base.base import BaseDatabaseWrapper

from ..db import statements_for, transaction


class LeadershipLost(Exception):
    """Somebody else leads meanwhile: what this one was about to write is not written."""


@contextmanager
def leading(using: str, namespace: str, epoch: int) -> Iterator[BaseDatabaseWrapper]:
    """Open a transaction of the leader with this epoch; nobody takes over until it ends.

    Raises LeadershipLost, before anything is written.
    """
    with transaction(using) as connection:
        if not statements_for(connection).leads(namespace, epoch):
            raise LeadershipLost
        yield connection
