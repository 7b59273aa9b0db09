"""The page on commands names each subcommand with its options, and the exit codes."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from django.core.management.base import BaseCommand

from django_durable_jobs.doctor.finding import Finding
from django_durable_jobs.management.commands.durablejobs import BROKEN_PIPE, SUBCOMMANDS
from django_durable_jobs.management.subcommands.jobdeeds import JobCommand
from django_durable_jobs.worker.restarts import CLEAN, FAULT, USAGE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_text()
TABLE = PAGE.partition("## Exit codes")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")]
SCOPE = {"--namespace", "--database"}


def options_of(command: BaseCommand) -> set[str]:
    actions = command.create_parser("manage.py", "it")._actions
    shown = [action for action in actions if action.help != argparse.SUPPRESS]
    return {name for action in shown for name in action.option_strings}


def row_of(name: str) -> str:
    (row,) = [row for row in ROWS if re.match(rf"\| \[?`{name}[ `]", row)]
    return row


def named_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", text))


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_subcommand_is_told_of_with_its_options(name: str) -> None:
    command = SUBCOMMANDS[name]()
    row = row_of(name)
    if name == "run":  # another page has them
        assert "running.md#options" in row
        return
    wanted = options_of(command) - options_of(BaseCommand()) - SCOPE
    told = named_in(row) - SCOPE
    if isinstance(command, JobCommand):
        section = PAGE.partition("## Steering jobs")[2].partition("## Loops")[0]
        told |= named_in("".join(re.findall(r"^\| (`--.*?) \|", section, re.MULTILINE)))
    assert told == wanted
    scope = options_of(command) & SCOPE
    assert ("no `--namespace`" in row) == (scope == {"--database"})


def test_no_other_subcommand_is_told_of() -> None:
    told = re.findall(r"^\| \[?`([a-z-]+)", TABLE, re.MULTILINE)
    assert sorted(told) == sorted(SUBCOMMANDS)


def test_the_page_has_each_exit_code() -> None:
    told = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert [int(code) for code in told] == [CLEAN, FAULT, USAGE, BROKEN_PIPE]


def test_the_page_has_each_place_where_the_doctor_looks() -> None:
    section = PAGE.partition("## What is wrong")[2].partition("## Steering jobs")[0]
    told = set(re.findall(r"^\| `([a-z]+)` \|", section, re.MULTILINE))
    package = Path(__file__).resolve().parents[2] / "django_durable_jobs"
    sources = [*package.glob("doctor/*.py"), package / "management/subcommands/doctor.py"]
    text = "".join(path.read_text() for path in sources)
    assert Finding.__name__ in text
    assert told == set(re.findall(r"Finding\(\s*\"([a-z]+)\"", text))
