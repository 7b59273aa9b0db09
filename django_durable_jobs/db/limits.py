"""How long the machinery's own connections wait: for locks, for answers, to be let in.

Nothing here touches the project's connections: a limit that suits a lease may not suit a report.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

# Establishing a connection, in seconds: long enough for one lost packet, short enough that work
# goes on within five seconds when the database comes back in the middle of it.
CONNECT = 3
# One statement of ours, in seconds, however long the lease.
LONGEST = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """In seconds, each longer than the one before: whoever can say what is wrong speaks first."""

    lock: float  # then the server refuses a statement that waits for somebody else
    statement: float  # then the server ends a statement
    answer: float  # then we give a connection up, and the server a transaction that stands still


def limits_for(lease: float) -> Limits:
    """Return the limits that leave time to renew a lease of so many seconds on a new connection."""
    statement = min(max(lease / 3, 1.0), LONGEST)
    return Limits(lock=statement / 2, statement=statement, answer=statement * 1.25)


def with_limits(vendor: str, options: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the OPTIONS of a connection that does not wait for ever.

    How to reach the server is the project's to say (a slow VPN, say), how long we wait for its
    answers is ours.
    """
    if vendor == "postgresql":
        reach: dict[str, Any] = {
            "connect_timeout": CONNECT,
            "keepalives": 1,
            "keepalives_idle": math.ceil(limits.statement),
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": round(limits.answer * 1_000),
        }
        return {**reach, **options}
    if vendor == "mysql":
        patience = math.ceil(limits.answer)
        waits = {"read_timeout": patience, "write_timeout": patience}
        return {"connect_timeout": CONNECT, **options, **waits}
    return options


def limit_answers(driver: Any, limits: Limits) -> None:
    """Have psycopg give a connection up on which an answer takes too long.

    The server's own time-outs are of no use where what is lost is the answer, nor TCP's where
    something in between (a pooler that hangs, a stopped server) still acknowledges packets.
    """
    wait: Callable[..., Any] | None = getattr(driver, "wait", None)
    if wait is None:  # not psycopg 3
        return

    def wait_so_long(steps: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        return wait(_given_up(driver, steps, limits.answer), *args, **options)

    driver.wait = wait_so_long


def _given_up(
    driver: Any, steps: Generator[Any, Any, Any], seconds: float
) -> Generator[Any, Any, Any]:
    """Yield what ``steps`` yields; close the connection and raise once it has taken so long."""
    from psycopg import OperationalError

    deadline = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= deadline:
                driver.close()
                raise OperationalError(f"no answer from the server for {seconds:.1f} seconds")
            wanted = steps.send(ready)
    except StopIteration as end:
        return end.value


# Statements are prepared here, and their plans kept: perhaps from when the tables were empty, and
# to read all of one was cheapest. So that way is barred. JIT: a barred way looks so dear that it
# would be compiled.
WALKS = {"enable_seqscan": "off", "jit": "off"}


def limit_session(connection: Any, limits: Limits) -> None:
    """Say the limits to the server, and bar bad plans, for a session that was just opened.

    Not to PostgreSQL behind a pooler, whose session is everybody's, as are the statements that
    were prepared in it: there nothing is.
    """
    if connection.vendor == "postgresql":
        driver = connection.connection
        # Behind a pooler the process that answers is not the one that the client was told of.
        pid = getattr(driver.info, "backend_pid", None)
        times = {
            "lock_timeout": limits.lock,
            "statement_timeout": limits.statement,
            "idle_in_transaction_session_timeout": limits.answer,
        }
        given = {name: f"{seconds:.3f}s" for name, seconds in times.items()} | WALKS
        calls = ", ".join(f"set_config('{name}', %s, FALSE)" for name in given)
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {calls} WHERE pg_backend_pid() = %s",
                [*given.values(), pid],
            )
            if cursor.fetchone() is None:
                connection.behind_pooler = True
                driver.prepare_threshold = None
    elif connection.vendor == "mysql":
        lock = max(1, round(limits.lock))
        values = {"innodb_lock_wait_timeout": lock, "lock_wait_timeout": lock}
        if connection.mysql_is_mariadb:
            values["max_statement_time"] = math.ceil(limits.statement)
            # MySQL knows no such limit.
            values["idle_transaction_timeout"] = math.ceil(limits.answer)
        with connection.cursor() as cursor:
            said = ", ".join(f"SESSION {name} = {value}" for name, value in values.items())
            cursor.execute(f"SET {said}")
