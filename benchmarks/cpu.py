"""Processor time of this thread and of the server's for its connection.

What else runs on the machine stretches wall-clock times tenfold, and these hardly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def clock(connection: Any) -> Callable[[], float]:
    """Return a clock of the seconds that Python and the database have worked for this thread."""
    file = _server_thread(connection)

    def now() -> float:
        server = int(file.read_text().split()[0]) / 1e9 if file is not None else 0.0
        return time.thread_time() + server

    return now


def _server_thread(connection: Any) -> Path | None:
    """Return the file in which Linux counts the nanoseconds of the connection's server thread."""
    if connection.vendor == "sqlite":
        return None
    queries = {
        "postgresql": "SELECT pg_backend_pid()",
        "mysql": "SELECT tid FROM information_schema.processlist WHERE id = connection_id()",
    }
    with connection.cursor() as cursor:
        cursor.execute(queries[connection.vendor])
        (number,) = cursor.fetchone()
    found = [Path(f"/proc/{number}/schedstat"), *Path("/proc").glob(f"*/task/{number}/schedstat")]
    return next((file for file in found if file.exists()), None)
