"""Run the suite once per database: the pytest that was called starts one more for each."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper

from tests import databases, suites

INNER = databases.VARIABLE in os.environ

FOLDER = Path(__file__).parent
# Where a test that asks for no database is the same whichever there is.
ANYWHERE = [
    FOLDER / "rules",
    FOLDER / "test_layers.py",
    FOLDER / "test_suites.py",
    FOLDER / "seed" / "test_seed_map.py",
    FOLDER / "doors" / "test_api_page.py",
    FOLDER / "doors" / "test_settings_page.py",
    FOLDER / "doors" / "test_testing_page.py",
]
WRITTEN_ONCE = {"django_content_type", "auth_permission"}
DATABASE_FIXTURES = {"db", "transactional_db"}


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
    report = suites.run(wanted, config)
    if not option.collectonly:
        report.write()
    missing = [name for name in wanted if name in required and name in report.unavailable]
    if missing or not report.codes:
        print(f"ERROR: could not test on {', '.join(missing or wanted)}", file=sys.stderr)
        return pytest.ExitCode.USAGE_ERROR
    return report.worst()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests for which the database does not matter to the suite told to run them."""
    if not os.environ.get(suites.ELSEWHERE):
        return
    passed = [item for item in items if _is_the_same_everywhere(item)]
    config.hook.pytest_deselected(items=passed)
    items[:] = [item for item in items if not _is_the_same_everywhere(item)]


def _is_the_same_everywhere(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    if item.get_closest_marker("once"):
        return True
    if item.get_closest_marker("django_db") or DATABASE_FIXTURES & set(item.fixturenames):
        return False
    return any(item.path.is_relative_to(path) for path in ANYWHERE)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := set(names) - set(databases.NAMES):
        accepted = ", ".join(databases.NAMES)
        raise pytest.UsageError(f"unknown database {', '.join(unknown)}; known are {accepted}")
    return [name for name in databases.NAMES if name in names or not names]


@pytest.fixture(scope="session", autouse=True)
def quick_flush() -> None:
    """Empty the tables after a test by DELETE, and leave what `migrate` wrote for Django's admin.

    Writing content types and permissions anew took longer than most tests, and PostgreSQL's
    TRUNCATE makes new files for all tables. On PostgreSQL and SQLite foreign keys are checked at
    the commit, so that the order of the tables does not matter; MySQL is told not to look.
    """
    from django.core.management.commands import flush

    def sql_flush(_style: object, connection: BaseDatabaseWrapper, **_: object) -> list[str]:
        tables = connection.introspection.django_table_names(
            only_existing=True, include_views=False
        )
        name = connection.ops.quote_name
        deletions = [f"DELETE FROM {name(table)}" for table in tables if table not in WRITTEN_ONCE]
        if connection.vendor == "mysql":
            return ["SET FOREIGN_KEY_CHECKS = 0", *deletions, "SET FOREIGN_KEY_CHECKS = 1"]
        return deletions

    flush.sql_flush = sql_flush  # type: ignore[attr-defined]
    flush.emit_post_migrate_signal = lambda *_: None  # type: ignore[attr-defined]
