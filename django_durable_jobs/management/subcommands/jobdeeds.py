"""What the subcommands that steer jobs have in common: ask, do it one by one, tell of each."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from ...errors import DurableJobsError, JobDoesNotExist, WrongState
from ...selecting import Chosen, if_unmoved
from ...states import SETTLED, State
from ...worker.restarts import FAULT, USAGE
from ...worker.trouble import one_line
from .naming import add_naming, named, selected, selects
from .scope import scope_of
from .telling import clock, counted, refusals

_MOST_ASKED = 20


@dataclass(frozen=True, slots=True)
class Refused:
    """Why it was not done to a job, by a code that does not change and in a sentence."""

    job: str
    code: str
    why: str


@dataclass(slots=True)
class Report:
    """To which jobs it was done and how that is called, to which not and why."""

    done: list[tuple[Chosen, str]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    untried: int = 0

    @property
    def is_whole(self) -> bool:
        return not self.refused and not self.untried


class JobCommand(BaseCommand):
    """Do one thing to the jobs that are named by ids, or chosen by how they stand."""

    # To stop something that goes wrong nothing else need be well.
    requires_system_checks: list[str] = []

    deed: ClassVar[str]  # as a question has it
    done: ClassVar[str]
    states: ClassVar[Sequence[State]]  # from which it can be done
    # Which of them are meant by a selection that names none; empty: it must.
    default_states: ClassVar[Sequence[State]] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_naming(parser, self.states)
        parser.add_argument("--json", action="store_true", help="tell it as a JSON object")

    def act(self, id: UUID, alias: str, options: dict[str, Any]) -> str:
        """Do it to one job; return what that is called."""
        raise NotImplementedError

    def hint(self, state: State) -> str:
        """Say what to do instead about a job in a state from which this cannot be done."""
        return ""

    def handle(self, *args: Any, **options: Any) -> None:
        namespace, alias = scope_of(options)
        report, more = Report(), False
        with refusals(alias):
            if selects(options):
                jobs, more = self._selected(options, namespace, alias)
                if not options["json"]:
                    self._describe(jobs, namespace, more=more)
                if jobs and not options["dry_run"] and not options["yes"]:
                    self._ask(jobs, options)
            else:
                jobs = self._named(options, alias, report)
        if options["dry_run"]:
            self._would(jobs, report, options, more=more)
        else:
            self._do(jobs, alias, options, report)
            self._tell(report, options, more=more)
        if not report.is_whole:
            sys.exit(FAULT)

    def _selected(
        self, options: dict[str, Any], namespace: str, alias: str
    ) -> tuple[list[Chosen], bool]:
        if options["state"] is None and not self.default_states:
            states = " or ".join(f"--state {state}" for state in self.states)
            raise CommandError(f"In which state? Give {states}.", returncode=USAGE)
        if not (options["yes"] or options["dry_run"]) and (
            options["json"] or not sys.stdin.isatty()
        ):
            text = "Nobody can be asked here: look with --dry-run, then give --yes."
            raise CommandError(text, returncode=USAGE)
        return selected(options, self.default_states, namespace, alias)

    def _named(self, options: dict[str, Any], alias: str, report: Report) -> list[Chosen]:
        jobs = []
        for word, job in named(options, alias):
            if job is not None:
                jobs.append(job)
                continue
            where = f" in the namespace {options['namespace']}" * bool(options["namespace"])
            why = f"There is no such job{where}."
            report.refused.append(Refused(word[:64], JobDoesNotExist.code, why))
        return jobs

    # Before it is done

    def _describe(self, jobs: Sequence[Chosen], namespace: str, *, more: bool) -> None:
        if not jobs:
            self.stdout.write(f"No job of the namespace {namespace} stands like that.")
            return
        kinds = Counter(job.type for job in jobs).most_common()
        told = ", ".join(f"{number:,} {type}" for type, number in kinds[:5])
        told += f" and {len(kinds) - 5} more types" * (len(kinds) > 5)
        which = f"of the namespace {namespace}" + ", the oldest of more" * more
        self.stdout.write(f"{counted(len(jobs), 'job')} {which}: {told}.")
        for job in jobs[:_MOST_ASKED]:
            self.stdout.write(f"  {_line(job)}")
        if len(jobs) > _MOST_ASKED:
            self.stdout.write(f"  … and {len(jobs) - _MOST_ASKED:,} more")

    def _ask(self, jobs: Sequence[Chosen], options: dict[str, Any]) -> None:
        self.stdout.write(f"{self.deed} {counted(len(jobs), 'job')}? [y/N] ", ending="")
        self.stdout.flush()
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was done.", returncode=FAULT)

    def _would(
        self, jobs: Sequence[Chosen], report: Report, options: dict[str, Any], *, more: bool
    ) -> None:
        for job in jobs:
            if job.state in self.states:
                report.done.append((job, ""))
            else:
                report.refused.append(self._wrong_state(job.id, job.state))
        if options["json"]:
            self._tell(report, options, more=more)
            return
        if options["ids"]:
            for job, _ in report.done:
                self.stdout.write(f"would do   {_line(job)}")
            for refused in report.refused:
                self._not_done(refused)
        text = f"{len(report.done):,} would be {self.done}"
        text += f", {len(report.refused):,} not" * bool(report.refused)
        self.stdout.write(f"{text}. Nothing was done.")

    # Doing it

    def _do(
        self, jobs: Sequence[Chosen], alias: str, options: dict[str, Any], report: Report
    ) -> None:
        """Do it to each job, in a transaction of its own; stop where the database is gone."""
        quiet = options["json"]
        for refused in () if quiet else report.refused:
            self._not_done(refused)
        for number, job in enumerate(jobs):
            try:
                came_to = self._attempt(job, alias, options)
            except KeyboardInterrupt:
                report.untried = len(jobs) - number
                break
            except Error as error:
                why = f"The database did not answer as it should: {one_line(error)}"
                came_to = Refused(str(job.id), "database", why)
                report.untried = len(jobs) - number - 1
            if isinstance(came_to, Refused):
                report.refused.append(came_to)
            else:
                report.done.append((job, came_to))
            if not quiet and isinstance(came_to, Refused):
                self._not_done(came_to)
            elif not quiet:
                self.stdout.write(f"{came_to:<10}  {job.id}  {job.type}")
            if report.untried:
                break

    def _attempt(self, job: Chosen, alias: str, options: dict[str, Any]) -> str | Refused:
        try:
            return if_unmoved(job, lambda: self.act(job.id, alias, options), using=alias)
        except WrongState as error:
            if error.state in ("", *self.states):  # the verb has a reason of its own
                return Refused(str(job.id), error.code, str(error))
            return self._wrong_state(job.id, State(error.state))
        except DurableJobsError as error:
            return Refused(str(job.id), error.code, str(error))
        except ValueError as error:  # a row edited by hand, whose JSON cannot be read
            return Refused(str(job.id), "unreadable", f"Its row cannot be read: {one_line(error)}")

    def _wrong_state(self, id: UUID, state: State) -> Refused:
        *most, last = (state.value for state in self.states)
        wanted = f"{', '.join(most)} or {last}" if most else last
        why = f"It is {state.value}: only {wanted} jobs can be {self.done}."
        return Refused(str(id), WrongState.code, why + self.hint(state))

    def _not_done(self, refused: Refused) -> None:
        line = f"{'not done':<10}  {refused.job}  {refused.why}"
        self.stdout.write(self.style.WARNING(line))

    def _tell(self, report: Report, options: dict[str, Any], *, more: bool) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(report, options, more=more)))
            return
        words = Counter(word for _, word in report.done)
        parts = [f"{number:,} {word}" for word, number in words.items()] or [f"0 {self.done}"]
        parts += [f"{len(report.refused):,} not done"] * bool(report.refused)
        parts += [f"{report.untried:,} not tried"] * bool(report.untried)
        if len(report.done) + len(report.refused) + report.untried > 1:
            self.stdout.write(f"{', '.join(parts)}.")
        if not (report.done or report.refused or report.untried or not options["ids"]):
            self.stdout.write("Nothing to do: standard input named no job.")
        if more:
            self.stdout.write("There are more that stand like that: run it again.")


def _line(job: Chosen) -> str:
    parts = [f"{job.state.value:<11}", str(job.id), job.type]
    parts += [f"owner {job.owner_id}"] if job.owner_id else []
    if job.at is not None:
        what = "put in" if job.state == State.QUEUED else "claimed"
        parts.append(f"{'ended' if job.state in SETTLED else what} {clock(job.at)}")
    return "  ".join(parts)


def _as_json(report: Report, options: dict[str, Any], *, more: bool) -> dict[str, Any]:
    return {
        "dry_run": options["dry_run"],
        "done": [
            {"job": str(job.id), "type": job.type, "was": job.state.value, "did": word or None}
            for job, word in report.done
        ],
        "not_done": [
            {"job": each.job, "code": each.code, "message": each.why} for each in report.refused
        ],
        "not_tried": report.untried,
        "more": more,
    }
