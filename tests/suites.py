"""One pytest per database: how they run side by side, and what is told of them all."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, NoReturn

import django
import pytest

from tests import databases

# Set for a suite that leaves the tests to which databases are alike to another one.
ELSEWHERE = "DDJ_RULES_ELSEWHERE"


@dataclass
class Report:
    """What was tested on, with pytest's exit codes, and what was not and why."""

    codes: dict[str, int] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    passed_over: str = ""  # where the tests to which databases are alike ran, if not everywhere
    unavailable: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, suite: Suite) -> None:
        self.codes[suite.name] = suite.code
        if suite.code == pytest.ExitCode.NO_TESTS_COLLECTED:
            self.skipped[suite.name] = "no test was selected"
            return
        if suite.elsewhere and self.versions:
            self.passed_over = self.versions[0]
        self.versions.append(suite.version)

    @property
    def seen(self) -> set[str]:
        return {*self.codes, *self.unavailable, *self.skipped}

    def worst(self) -> int:
        """Return the gravest exit code; 5, no tests, counts only if no database had any."""
        codes = set(self.codes.values())
        return max(codes - {5} or codes)

    def write(self) -> None:
        software = f"Django {django.get_version()}, Python {platform.python_version()}"
        print(f"tested on: {', '.join(self.versions) or 'nothing'} ({software})")
        if self.passed_over:
            print(f"tests to which databases are alike: with {self.passed_over} only")
        for name, reason in (self.unavailable | self.skipped).items():
            print(f"not tested on {name}: {reason}")
        for name, code in self.codes.items():
            if code not in (0, 5):
                print(f"failed on {name} (exit code {code})")
        sys.stdout.flush()


class Suite:
    """An inner pytest: it has the terminal, or writes to `output`, which `show` shows."""

    def __init__(
        self,
        name: str,
        database: databases.Database,
        config: pytest.Config,
        *,
        elsewhere: bool,
        output: IO[bytes] | None = None,
    ) -> None:
        self.name = name
        self.version = database.version
        self.elsewhere = elsewhere
        self.stopped = False
        self._shown = 0
        self._output = output
        beside = output is not None
        environment = os.environ | {
            "DDJ_DB": name,
            "DDJ_VERSION": database.version,
            databases.VARIABLE: json.dumps(database.settings),
            ELSEWHERE: "1" if elsewhere else "",
        }
        if beside:
            environment.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
            if sys.stdout.isatty():
                environment.setdefault("PY_COLORS", "1")
        # What failed last differs between databases.
        cache = f"cache_dir={config.rootpath / '.pytest_cache' / name}"
        sys.stdout.flush()
        self._process = subprocess.Popen(
            # Unbuffered, so that its dots are seen as they come.
            [sys.executable, "-u", "-m", "pytest", *config.invocation_params.args, "-o", cache],
            env=environment,
            cwd=config.invocation_params.dir,
            stdin=subprocess.DEVNULL if beside else None,
            stdout=output,
            stderr=subprocess.STDOUT if beside else None,
            # So that Ctrl-C reaches all of them once, and through this process.
            start_new_session=beside,
            preexec_fn=databases.die_with_parent(signal.SIGTERM),
        )

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> None:
        self._process.wait()

    def stop(self) -> None:
        """Tell it to end; it tidies up and reports first."""
        if not self.is_over():
            self.stopped = True
            self._process.terminate()

    @property
    def code(self) -> int:
        """Return pytest's exit code, once it is over."""
        code = self._process.returncode
        if code < 0:
            return pytest.ExitCode.INTERRUPTED if self.stopped else pytest.ExitCode.INTERNAL_ERROR
        return code

    @property
    def has_failed(self) -> bool:
        return self.is_over() and self.code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)

    def show(self) -> None:
        """Write to our output what it has written since the last call."""
        assert self._output is not None
        # By position: the file's own is where the suite goes on writing.
        while piece := os.pread(self._output.fileno(), 1 << 16, self._shown):
            self._shown += len(piece)
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()

    def __enter__(self) -> Suite:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.wait()


def run(names: Sequence[str], config: pytest.Config) -> Report:
    """Run the suite on each of these databases that is to be had."""
    report = Report()
    option = config.option
    # What talks with a terminal, or has several processes of its own, wants to be alone.
    alone = option.usepdb or option.trace or option.capture == "no"
    if alone or getattr(option, "numprocesses", None) or len(names) == 1:
        _in_turn(names, config, report)
    else:
        _side_by_side(names, config, report)
    return report


def _in_turn(names: Sequence[str], config: pytest.Config, report: Report) -> None:
    _handle(_exit, signal.SIGTERM, signal.SIGHUP)
    first: Suite | None = None
    for name in names:
        with _opened(name, report) as database:
            if database is None:
                continue
            elsewhere = first is not None
            with Suite(name, database, config, elsewhere=elsewhere) as suite:
                try:
                    suite.wait()
                except KeyboardInterrupt:  # from a terminal: the suite has got it too
                    suite.wait()
        report.add(suite)
        first = first or suite
        if suite.code == pytest.ExitCode.INTERRUPTED:
            break
        if suite.has_failed and config.option.maxfail:
            break
    report.skipped |= {name: "not reached" for name in names if name not in report.seen}


def _side_by_side(names: Sequence[str], config: pytest.Config, report: Report) -> None:
    suites: list[Suite] = []
    signals: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        signals.append(number)
        for suite in suites:
            suite.stop()

    _handle(pass_on, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with ExitStack() as stack:
        for name in names:
            database = stack.enter_context(_opened(name, report))
            if database is not None and not signals:
                output = stack.enter_context(tempfile.TemporaryFile())
                suite = Suite(name, database, config, elsewhere=bool(suites), output=output)
                suites.append(stack.enter_context(suite))
        _follow(suites, stop_at_failure=bool(config.option.maxfail))
    if signals and (signals[0] != signal.SIGINT or not suites):
        _exit(signals[0])
    for suite in suites:
        if suite.stopped and suite.code == pytest.ExitCode.INTERRUPTED and not signals:
            report.skipped[suite.name] = "stopped, as another database had failed"
        else:
            report.add(suite)


@contextmanager
def _opened(name: str, report: Report) -> Iterator[databases.Database | None]:
    """Open a database for the block; None if it is not to be had, and the report tells why."""
    with ExitStack() as stack:
        database = None
        try:
            database = stack.enter_context(databases.OPENERS[name]())
        except databases.Unavailable as error:
            report.unavailable[name] = " ".join(str(error).split())
        yield database


def _follow(suites: Sequence[Suite], *, stop_at_failure: bool) -> None:
    """Show one suite's output after the other's, each as it comes, until all are over."""
    for suite in suites:
        over = False
        while not over:
            if stop_at_failure and any(each.has_failed for each in suites):
                stop_at_failure = False
                for each in suites:
                    each.stop()
            over = suite.is_over()
            suite.show()
            if not over:
                time.sleep(0.1)


def _handle(handler: Callable[[int, FrameType | None], object], *numbers: int) -> None:
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:  # by nohup, for example
            signal.signal(number, handler)


def _exit(number: int, _frame: object = None) -> NoReturn:
    sys.exit(128 + number)
