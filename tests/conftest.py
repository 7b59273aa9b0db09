"""Run the suite once per database: the pytest that was called starts one more for each."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NoReturn

import django
import pytest

from tests import databases

INNER = databases.VARIABLE in os.environ


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--db",
        action="append",
        default=[],
        metavar="NAME",
        help=f"test only on this database ({', '.join(databases.NAMES)}); repeatable, commas work",
    )


def pytest_report_header() -> str | None:
    return f"database: {os.environ['DDJ_VERSION']}" if "DDJ_VERSION" in os.environ else None


def pytest_configure(config: pytest.Config) -> None:
    """Have an inner pytest take SIGTERM as it takes Ctrl-C, so that it drops its database."""
    if INNER and not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run the suite on each wanted database; None leaves it to pytest itself."""
    option = config.option
    asks = ("help", "version", "markers", "showfixtures", "show_fixtures_per_test", "cacheshow")
    if INNER or any(getattr(option, name, None) for name in asks):
        return None
    wanted = _names(",".join(option.db) or os.environ.get("DDJ_DB", ""))
    if option.collectonly:
        wanted = wanted[:1]
    required = _names(os.environ["DDJ_REQUIRE"]) if os.environ.get("DDJ_REQUIRE") else []
    report = Report()
    signal.signal(signal.SIGTERM, _terminated)
    for name in wanted:
        code = _run_on(name, config, report)
        if code == pytest.ExitCode.INTERRUPTED or (code not in (None, 0, 5) and option.maxfail):
            break
    report.skipped.update({n: "not reached" for n in wanted if n not in report.seen})
    if not option.collectonly:
        report.write()
    missing = [name for name in wanted if name in required and name in report.unavailable]
    if missing or not report.codes:
        print(f"ERROR: could not test on {', '.join(missing or wanted)}", file=sys.stderr)
        return pytest.ExitCode.USAGE_ERROR
    return report.worst()


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := set(names) - set(databases.NAMES):
        accepted = ", ".join(databases.NAMES)
        raise pytest.UsageError(f"unknown database {', '.join(unknown)}; known are {accepted}")
    return [name for name in databases.NAMES if name in names or not names]


@dataclass
class Report:
    """What was tested on, with pytest's exit codes, and what was not and why."""

    codes: dict[str, int] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def seen(self) -> set[str]:
        return {*self.codes, *self.unavailable}

    def worst(self) -> int:
        """Return the gravest exit code; 5, no tests, counts only if no database had any."""
        codes = set(self.codes.values())
        return max(codes - {5} or codes)

    def write(self) -> None:
        software = f"Django {django.get_version()}, Python {platform.python_version()}"
        print(f"tested on: {', '.join(self.versions) or 'nothing'} ({software})")
        for name, reason in (self.unavailable | self.skipped).items():
            print(f"not tested on {name}: {reason}")
        for name, code in self.codes.items():
            if code not in (0, 5):
                print(f"failed on {name} (exit code {code})")
        sys.stdout.flush()


def _run_on(name: str, config: pytest.Config, report: Report) -> int | None:
    """Run an inner pytest on one database; return its exit code, or None if there is none."""
    with ExitStack() as stack:
        try:
            database = stack.enter_context(databases.OPENERS[name]())
        except databases.Unavailable as error:
            report.unavailable[name] = " ".join(str(error).split())
            return None
        environment = os.environ | {
            "DDJ_DB": name,
            "DDJ_VERSION": database.version,
            databases.VARIABLE: json.dumps(database.settings),
        }
        # What failed last differs between databases.
        cache = f"cache_dir={config.rootpath / '.pytest_cache' / name}"
        command = [sys.executable, "-m", "pytest", *config.invocation_params.args, "-o", cache]
        sys.stdout.flush()
        code = _call(command, environment, str(config.invocation_params.dir))
        report.codes[name] = code
        if code == pytest.ExitCode.NO_TESTS_COLLECTED:
            report.skipped[name] = "no test was selected"
        else:
            report.versions.append(database.version)
        return code


def _call(command: list[str], environment: dict[str, str], folder: str) -> int:
    """Run an inner pytest; when this one is told to stop, that one tidies up and reports first."""
    stop = databases.die_with_parent(signal.SIGTERM)
    with subprocess.Popen(command, env=environment, cwd=folder, preexec_fn=stop) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:  # from a terminal: the inner one has got it too
            process.wait()
            return pytest.ExitCode.INTERRUPTED
        except SystemExit:
            process.terminate()
            raise
    return code if code >= 0 else pytest.ExitCode.INTERNAL_ERROR


def _terminated(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


@pytest.fixture(scope="session", autouse=True)
def quick_flush() -> None:
    """Empty PostgreSQL's tables by DELETE after each test: TRUNCATE makes new files for them all.

    Foreign keys are checked at the commit, so that the order of the tables does not matter.
    """
    from django.db.backends.postgresql.operations import DatabaseOperations

    def sql_flush(
        self: DatabaseOperations, style: object, tables: list[str], **options: object
    ) -> list[str]:
        return [f"DELETE FROM {self.quote_name(table)}" for table in tables]

    DatabaseOperations.sql_flush = sql_flush  # type: ignore[method-assign, assignment]
