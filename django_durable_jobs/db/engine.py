"""What stands behind a connection: product, version, driver, and what it is set to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

# As psycopg numbers them.
_LEVELS = {1: "read uncommitted", 2: "read committed", 3: "repeatable read", 4: "serializable"}
_INNODB = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Tell what a database is. What does not apply to its kind is left as it is here."""

    name: str  # PostgreSQL, MariaDB, MySQL, SQLite
    version: str
    driver: str = ""
    journal_mode: str = ""  # SQLite's; "" in memory
    strict_isolation: str = ""  # the project's level, where it is above READ COMMITTED
    is_pooled: bool = False  # something stands between that shares the server's sessions
    not_innodb: tuple[str, ...] = ()  # tables of ours whose engine knows no transactions


def engine_of(connection: Any, options: dict[str, Any], tables: Iterable[str]) -> Engine:
    """Return what stands behind a connection of the machinery's (``own_connections``).

    ``options`` are the project's OPTIONS, which the machinery's connection does not follow in all.
    """
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            return _sqlite(connection, cursor)
        if connection.vendor == "mysql":
            return _mysql(connection, cursor, options, set(tables))
        return _postgresql(connection, cursor, options)


def lacking_columns(
    connection: BaseDatabaseWrapper, wanted: Iterable[tuple[str, set[str]]]
) -> dict[str, set[str]]:
    """Return by table the columns that it lacks; a table that is not there lacks all of them."""
    found = {}
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor))
        for table, columns in wanted:
            described = (
                connection.introspection.get_table_description(cursor, table)
                if table in there
                else ()
            )
            if lacks := columns - {column.name for column in described}:
                found[table] = lacks
    return found


def _sqlite(connection: Any, cursor: Any) -> Engine:
    cursor.execute("PRAGMA journal_mode")
    mode = str(cursor.fetchone()[0]).lower()
    version = ".".join(map(str, connection.Database.sqlite_version_info))
    return Engine(name="SQLite", version=version, journal_mode="" if mode == "memory" else mode)


def _postgresql(connection: Any, cursor: Any, options: dict[str, Any]) -> Engine:
    cursor.execute("SHOW server_version")
    version = str(cursor.fetchone()[0]).split()[0]
    driver = connection.Database
    cursor.execute("SHOW default_transaction_isolation")
    level = str(cursor.fetchone()[0])
    return Engine(
        name="PostgreSQL",
        version=version,
        driver=f"{driver.__name__} {str(driver.__version__).split()[0]}",
        is_pooled=bool(getattr(connection, "behind_pooler", False)),
        strict_isolation=_strict(options.get("isolation_level", level)),
    )


def _mysql(connection: Any, cursor: Any, options: dict[str, Any], tables: set[str]) -> Engine:
    cursor.execute(f"{_INNODB} AND engine <> 'InnoDB'")
    others = sorted({str(row[0]) for row in cursor.fetchall()} & tables)
    driver = connection.Database
    return Engine(
        name="MariaDB" if connection.mysql_is_mariadb else "MySQL",
        version=".".join(map(str, connection.mysql_version)),
        driver=f"{driver.__name__} {'.'.join(map(str, driver.version_info[:3]))}",
        strict_isolation=_strict(options.get("isolation_level", "read committed")),
        not_innodb=tuple(others),
    )


def _strict(level: Any) -> str:
    """Return the name of a level above READ COMMITTED, "" for any other."""
    if level is None:  # Django's way to say that the server's own is meant
        return "THE SERVER'S OWN"
    name = getattr(level, "name", None) or _LEVELS.get(level, level)
    name = str(name).replace("_", " ").upper()
    return "" if name.startswith("READ") else name
