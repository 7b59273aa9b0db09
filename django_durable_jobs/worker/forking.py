"""Handlers that fork: the child is no worker, and ends where the handler does."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def parent_only() -> Iterator[None]:
    """Let only the process that entered leave; a child forked inside ends here.

    A child that went on would be a second worker with the same claims: it would take jobs from its
    copy of the queue, and write on the parent's connections.
    """
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != pid:
            _end_child(error)
        raise
    if os.getpid() != pid:
        _end_child(None)


def _end_child(error: BaseException | None) -> NoReturn:
    """End this process as Python would, without what would touch the parent's connections."""
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code or 0
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)
