"""How times, spans and somebody's words are told in a sentence, in the reader's language."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings as django_settings
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

Facts = dict[str, Any]

# How much of somebody's own words stands in a sentence; the facts have all of them.
_QUOTED = 200
_UNITS = (86_400, 3_600, 60, 1)


def span(seconds: float) -> str:
    """Tell a span by its two largest units: `3 hours 20 minutes`."""
    left, parts = round(seconds), []
    for size in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(_counted(number, size))
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or _("less than a second")


def _counted(number: int, size: int) -> str:
    match size:
        case 86_400:
            words = ngettext("%(number)d day", "%(number)d days", number)
        case 3_600:
            words = ngettext("%(number)d hour", "%(number)d hours", number)
        case 60:
            words = ngettext("%(number)d minute", "%(number)d minutes", number)
        case _:
            words = ngettext("%(number)d second", "%(number)d seconds", number)
    return words % {"number": number}


def moment(iso: str) -> str:
    """Tell a time on the reader's clock: `2026-12-01 08:00 UTC`, with seconds if there are any."""
    zone = timezone.get_current_timezone()
    if not django_settings.USE_TZ:
        zone = timezone.get_default_timezone()
    there = datetime.fromisoformat(iso).astimezone(zone)
    clock = "%H:%M:%S" if there.second else "%H:%M"
    return there.strftime(f"%Y-%m-%d {clock} %Z")


def quoted(text: str) -> str:
    """Return somebody's words in one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= _QUOTED else f"{line[: _QUOTED - 1]}…"


def closed(text: str) -> str:
    """Return somebody's words as the end of a sentence."""
    line = quoted(text)
    return line if line.endswith((".", "!", "?", "…")) else f"{line}."


def told(facts: Facts) -> Facts:
    """Return the facts as sentences need them: times told, texts cut."""
    return {name: value if value is None else _told(name, value) for name, value in facts.items()}


def _told(name: str, value: Any) -> Any:
    if name.endswith(("_at", "since")):
        return moment(value)
    if name.endswith("_seconds"):
        return span(value)
    return quoted(value) if isinstance(value, str) else value
