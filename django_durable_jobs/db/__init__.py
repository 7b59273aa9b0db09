"""The one room that knows database vendors: clocks, locks, claim and settle statements, errors."""

from django.db.backends.base.base import BaseDatabaseWrapper

from .clock import (
    Clock,
    DatabaseClock,
    ManualClock,
    current_clock,
    now_expression,
    use_clock,
)
from .connections import own_connections, transaction
from .enqueueing import COLUMNS, Inserted, NewJob
from .mysql import MySQLStatements
from .postgresql import PostgreSQLStatements
from .reading import Kind
from .repairing import FIRST
from .retrying import is_duplicate, is_transient, retrying
from .rows import Candidate, Held, Outcome, Survey, Taking, Wanted
from .statements import Statements

__all__ = [
    "COLUMNS",
    "FIRST",
    "Candidate",
    "Clock",
    "DatabaseClock",
    "Held",
    "Inserted",
    "Kind",
    "ManualClock",
    "NewJob",
    "Outcome",
    "Statements",
    "Survey",
    "Taking",
    "Wanted",
    "current_clock",
    "is_duplicate",
    "is_transient",
    "now_expression",
    "own_connections",
    "retrying",
    "statements_for",
    "transaction",
    "use_clock",
]

_VARIANTS = {"postgresql": PostgreSQLStatements, "mysql": MySQLStatements}


def statements_for(connection: BaseDatabaseWrapper, *, clock: Clock | None = None) -> Statements:
    """Return the statements that suit ``connection``'s database."""
    return _VARIANTS.get(connection.vendor, Statements)(connection, clock=clock)
