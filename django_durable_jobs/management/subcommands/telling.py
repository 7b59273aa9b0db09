"""How subcommands tell people of times and spans, of what was refused, and line up columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo

from django.core.management.base import CommandError
from django.db import Error
from django.utils import timezone

from ...errors import DurableJobsError, InvalidJob, InvalidRecurrence, UnknownSchedule
from ...insight import lacks_tables, no_tables
from ...worker.restarts import FAULT, USAGE
from ...worker.trouble import one_line

_SPANS = ((86_400 * 2, 86_400, "days"), (3_600 * 2, 3_600, "h"), (120, 60, "min"))


def clock(moment: datetime, zone: tzinfo | None = None) -> str:
    """Return `2026-12-01 02:00:00 CET`: in this zone, or in the current one."""
    local = moment.astimezone(zone or timezone.get_current_timezone())
    return f"{local:%Y-%m-%d %H:%M:%S %Z}"


def clock_and_utc(moment: datetime) -> str:
    """Return the moment in the current zone, and in UTC where that is another time."""
    told = clock(moment)
    return told if told.endswith(" UTC") else f"{told} ({moment.astimezone(UTC):%H:%M:%S} UTC)"


def how_long(seconds: float) -> str:
    """Return `7 s`, `4 min`, `5 h` or `3 days`; what is less than nothing was just now."""
    seconds = max(seconds, 0.0)
    for least, size, unit in _SPANS:
        if seconds >= least:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 job`, `1,200 jobs`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return the rows as lines with their columns in line, those of ``right`` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


@contextmanager
def refusals(using: str) -> Iterator[None]:
    """Raise CommandError for what is refused: code 2 for what there is not, else 1."""
    try:
        yield
    except (InvalidJob, InvalidRecurrence, UnknownSchedule) as error:
        raise CommandError(str(error), returncode=USAGE) from error
    except DurableJobsError as error:
        raise CommandError(str(error), returncode=FAULT) from error
    except Error as error:
        text = f"The database did not answer as it should: {one_line(error)}"
        if lacks_tables(using):
            text = no_tables(using)
        raise CommandError(text, returncode=FAULT) from error
