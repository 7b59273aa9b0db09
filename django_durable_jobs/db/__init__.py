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
from .connections import has_psycopg3, own_connections, transaction
from .enqueueing import COLUMNS, Inserted, NewJob
from .mysql import MySQLStatements
from .postgresql import PostgreSQLStatements
from .reading import Kind
from .repairing import FIRST
from .retrying import is_duplicate, is_transient, is_trouble, retrying
from .rows import Candidate, Held, Oldest, Outcome, Seen, Serves, Sight, Taking, Wanted, enough_each
from .standing import Holder
from .statements import Statements
from .ticking import NewTick
from .updating import BIGINT, ID, TEXT, TIME

__all__ = [
    "BIGINT",
    "COLUMNS",
    "FIRST",
    "ID",
    "TEXT",
    "TIME",
    "Candidate",
    "Clock",
    "DatabaseClock",
    "Held",
    "Holder",
    "Inserted",
    "Kind",
    "ManualClock",
    "NewJob",
    "NewTick",
    "Oldest",
    "Outcome",
    "Seen",
    "Serves",
    "Sight",
    "Statements",
    "Taking",
    "Wanted",
    "current_clock",
    "enough_each",
    "has_psycopg3",
    "is_duplicate",
    "is_transient",
    "is_trouble",
    "now_expression",
    "own_connections",
    "retrying",
    "statements_for",
    "transaction",
    "use_clock",
]

_VARIANTS = {"postgresql": PostgreSQLStatements, "mysql": MySQLStatements}


def statements_for(connection: BaseDatabaseWrapper) -> Statements:
    """Return the statements that suit ``connection``'s database."""
    return _VARIANTS.get(connection.vendor, Statements)(connection)
