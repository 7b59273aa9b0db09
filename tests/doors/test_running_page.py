"""The page on running workers names the command's options and exit codes, and no others."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from django.core.management.base import BaseCommand

from django_durable_jobs.management.commands.runscheduler import Command
from django_durable_jobs.worker import restarts

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "running.md").read_text()


def options_of(command: BaseCommand) -> set[str]:
    actions = command.create_parser("manage.py", "runscheduler")._actions
    shown = [action for action in actions if action.help != argparse.SUPPRESS]
    return {name for action in shown for name in action.option_strings}


def test_the_page_has_each_option_and_no_other() -> None:
    table = re.findall(r"^\| (`--.*?) \|", PAGE, re.MULTILINE)
    told = set(re.findall(r"`(--[a-z-]+)", " ".join(table)))
    assert told == options_of(Command()) - options_of(BaseCommand())


def test_the_page_has_each_exit_code() -> None:
    told = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert [int(code) for code in told] == [
        restarts.CLEAN,
        restarts.FAULT,
        restarts.USAGE,
        restarts.RESTART,
    ]
