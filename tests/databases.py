"""Find or start the databases that the suite runs on.

The outer pytest picks them (`available`); each inner one, and each process that a test starts,
reads its database from the environment (`settings_from_environment`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests import servers
from tests.servers import Unavailable, die_with_parent

__all__ = ["Unavailable", "die_with_parent"]

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "DDJ_DATABASE"
NAMES = ("sqlite", "postgres", "mariadb")

Settings = dict[str, Any]

SQLITE: Settings = {
    "ENGINE": "django.db.backends.sqlite3",
    "OPTIONS": {
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
    },
}


@dataclass(frozen=True)
class Database:
    """A database to test on: Django's settings for it, and its name and version for people."""

    settings: Settings
    version: str


# What the inner pytest and other processes need


def settings_from_environment() -> Settings:
    """Return the DATABASES entry that the outer pytest chose, else SQLite in memory."""
    if given := os.environ.get(VARIABLE):
        settings: Settings = json.loads(given)
        return settings
    return SQLITE | {"NAME": ":memory:"}


def subprocess_environment() -> dict[str, str]:
    """Return what a child process needs in its environment to work on the current test database.

    Call it inside a test: before the test database exists it names the wrong one.
    """
    from django.db import connection

    settings = settings_from_environment() | {"NAME": str(connection.settings_dict["NAME"])}
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        VARIABLE: json.dumps(settings),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": os.pathsep.join(path),
    }


@contextmanager
def default_database(settings: Settings) -> Iterator[None]:
    """Have every thread of this process find another database under the alias "default"."""
    from django.db import connections

    previous, wrapper = connections.settings["default"], connections["default"]
    connections.settings["default"] = {**previous, "OPTIONS": {}, **settings}
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"] = previous
        connections["default"] = wrapper


# Names of test databases


def checkout() -> str:
    """Return a short word for this clone on this host, so that clones can share a server."""
    return hashlib.sha256(f"{platform.node()}:{ROOT}".encode()).hexdigest()[:8]


def database_name() -> str:
    return f"test_ddj_{checkout()}_{os.getpid()}"


def is_stale(name: str) -> bool:
    """Tell whether a run of this clone that is no more has left this database behind."""
    match = re.fullmatch(rf"test_ddj_{checkout()}_(\d+)(_\w+)?", name)
    return match is not None and not _alive(int(match[1]))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def from_url(url: str, engine: str) -> Settings:
    """Turn a URL into a DATABASES entry; `?host=` names a socket's folder, as libpq has it."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    return {
        "ENGINE": engine,
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.get("host") or parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


# The three databases


@contextmanager
def sqlite() -> Iterator[Database]:
    """Offer a file in a temporary folder: other processes cannot open one that is in memory."""
    with tempfile.TemporaryDirectory(prefix="ddj-sqlite-") as folder:
        file = str(Path(folder, "test.sqlite3"))
        settings = SQLITE | {"NAME": file, "TEST": {"NAME": file}}
        yield Database(settings, f"SQLite {sqlite3.sqlite_version}")


@contextmanager
def postgres() -> Iterator[Database]:
    """Offer the server that DDJ_POSTGRES_URL names, else one that answers, else our own."""
    try:
        import psycopg
    except ImportError as error:
        raise Unavailable(f"psycopg is not installed ({error})") from error

    with ExitStack() as stack:
        if url := os.environ.get("DDJ_POSTGRES_URL"):
            settings = _postgres_settings(url)
            try:
                version = _postgres_version(settings)
            except psycopg.OperationalError as error:
                raise Unavailable(f"DDJ_POSTGRES_URL does not answer: {error}") from error
        elif found := _running_postgres():
            settings, version = found
        else:
            server = stack.enter_context(servers.running(servers.PostgresServer))
            settings = _postgres_settings(f"postgresql://postgres@/postgres?host={server.folder}")
            version = _postgres_version(settings)
        _drop_stale_postgres(settings)
        label = f"PostgreSQL {version // 10000}.{version % 10000}"
        yield Database(settings | {"TEST": {"NAME": database_name()}}, label)


def _postgres_settings(url: str) -> Settings:
    settings = from_url(url, "django.db.backends.postgresql")
    return settings | {"NAME": settings["NAME"] or "postgres"}


def _running_postgres() -> tuple[Settings, int] | None:
    """Return a server on this machine that lets us in and is new enough for Django."""
    import psycopg
    from django.db.backends.postgresql.features import DatabaseFeatures

    if os.environ.get("DDJ_POSTGRES") == "embedded":
        return None
    for url in ("postgresql://postgres@127.0.0.1:5432/postgres", "postgresql:///postgres"):
        with contextlib.suppress(psycopg.OperationalError):
            settings = _postgres_settings(url)
            version = _postgres_version(settings)
            least = DatabaseFeatures.minimum_database_version or (0,)
            if version >= least[0] * 10000:
                return settings, version
    return None


def _connect_postgres(settings: Settings) -> Any:
    import psycopg

    return psycopg.connect(
        dbname=settings["NAME"],
        user=settings["USER"] or None,
        password=settings["PASSWORD"] or None,
        host=settings["HOST"] or None,
        port=settings["PORT"] or None,
        connect_timeout=5,
        autocommit=True,
    )


def _postgres_version(settings: Settings) -> int:
    with _connect_postgres(settings) as connection:
        version: int = connection.info.server_version
        return version


def _drop_stale_postgres(settings: Settings) -> None:
    with _connect_postgres(settings) as connection:
        names = [name for (name,) in connection.execute("SELECT datname FROM pg_database")]
        for name in filter(is_stale, names):
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextmanager
def mariadb() -> Iterator[Database]:
    """Offer the server that DDJ_MARIADB_URL names, else one that answers; we start none."""
    try:
        import MySQLdb
    except ImportError as error:
        raise Unavailable(f"mysqlclient is not installed ({error})") from error

    url = os.environ.get("DDJ_MARIADB_URL", "mysql://root@127.0.0.1:3306")
    settings = from_url(url, "django.db.backends.mysql") | {"OPTIONS": {"charset": "utf8mb4"}}
    try:
        connection = MySQLdb.connect(
            host=settings["HOST"],
            port=int(settings["PORT"] or 3306),
            user=settings["USER"],
            password=settings["PASSWORD"],
            connect_timeout=5,
        )
    except MySQLdb.OperationalError as error:
        reason = f"no server answers at {settings['HOST']}:{settings['PORT']}: {error.args[-1]}"
        raise Unavailable(f"{reason} (set DDJ_MARIADB_URL=mysql://user:password@host:port)") from (
            error
        )
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        version = str(cursor.fetchone()[0])
        cursor.execute("SHOW DATABASES")
        for name in filter(is_stale, [str(name) for (name,) in cursor.fetchall()]):
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")
    product = "MariaDB" if "MariaDB" in version else "MySQL"
    test = {"NAME": database_name(), "CHARSET": "utf8mb4"}
    name = settings["NAME"] or "mysql"
    yield Database(settings | {"NAME": name, "TEST": test}, f"{product} {version.split('-')[0]}")


OPENERS: dict[str, Callable[[], contextlib.AbstractContextManager[Database]]] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "mariadb": mariadb,
}


if __name__ == "__main__":
    # `python -m tests.databases mariadb`: tell whether it could be tested on.
    for wanted in sys.argv[1:] or NAMES:
        try:
            with OPENERS[wanted]() as database:
                print(database.version)
        except Unavailable as error:
            sys.exit(f"{wanted}: {error}")
