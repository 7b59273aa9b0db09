"""`durablejobs doctor`: what is wrong, how bad it is and what to do, on one screen."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from django.core import checks
from django.core.management.base import BaseCommand

from ...checks import UNKNOWN_JOB
from ...conf import problems
from ...doctor import Finding, Severity, examine
from ...worker.restarts import FAULT
from .scope import add_scope, check_scope, scope_of, span
from .telling import counted

_CHECKS = "durable_jobs"
_STYLES = {"ok": "SUCCESS", "warning": "WARNING", "problem": "ERROR"}


class Command(BaseCommand):
    help = "Look for what is wrong, tell how bad it is and what to do: exit code 1 for problems."
    # They are run inside, and told as the rest is.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_scope(parser)
        parser.add_argument(
            "--max-age",
            type=span,
            metavar="AGE",
            help="a job that has been due for longer is a problem (seconds, or 5m, 2h); default:"
            " a warning after 5 minutes",
        )
        parser.add_argument("--json", action="store_true", help="tell it as a JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        check_scope(options)
        # With wrong settings nobody can tell which namespace is meant, nor where it lives.
        namespace, alias = (None, None) if problems() else scope_of(options)
        found = examine(namespace, using=alias, max_age=options["max_age"])
        if alias is not None:
            found += _checked(alias, found)
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(namespace, alias, found)))
        else:
            for line in self._lines(namespace, alias, found):
                self.stdout.write(line)
        if any(each.severity == "problem" for each in found):
            sys.exit(FAULT)

    def _lines(
        self, namespace: str | None, alias: str | None, found: Sequence[Finding]
    ) -> Iterator[str]:
        if namespace is not None:
            yield f"Namespace {namespace} in the database {alias}:"
        width = max(len(each.code) for each in found)
        for each in found:
            paint = getattr(self.style, _STYLES[each.severity])
            blank = " " * (width + 13)
            first, *more = self._wrapped(each.message, len(blank))
            yield f"  {paint(f'{each.severity:<7}')}  {each.code:<{width}}  {first}"
            if each.advice:
                first, *rest = self._wrapped(f"→ {each.advice}", len(blank))
                more += [first, *(f"  {line}" for line in rest)]
            yield from (f"{blank}{line}" for line in more)
        counts = Counter(each.severity for each in found)
        told = [counted(counts[each], each) for each in ("problem", "warning") if counts[each]]
        yield f"{' and '.join(told)}." if told else "All is well."

    def _wrapped(self, text: str, used: int) -> list[str]:
        """Return the text in lines that fit a terminal; in one where none is there."""
        if not self.stdout.isatty():
            return [text]
        width = max(shutil.get_terminal_size().columns - used - 2, 30)
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [text]


def _checked(alias: str, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield what the system checks say of handlers, schedules and databases."""
    away = any(each.code == "database" and each.severity == "problem" for each in found)
    messages = checks.run_checks(tags=[_CHECKS], databases=[] if away else [alias])
    for each in messages:
        # What schedules lack is among the findings already.
        if each.level < checks.WARNING or each.is_silenced() or each.id == UNKNOWN_JOB:
            continue
        severity: Severity = "warning" if each.level < checks.ERROR else "problem"
        yield Finding("checks", severity, f"{each.msg} ({each.id})", each.hint or "")


def _as_json(namespace: str | None, alias: str | None, found: Sequence[Finding]) -> dict[str, Any]:
    worst = [level for level in _STYLES if any(each.severity == level for each in found)][-1]
    findings = [asdict(each) for each in found]
    return {"namespace": namespace, "database": alias, "worst": worst, "findings": findings}
