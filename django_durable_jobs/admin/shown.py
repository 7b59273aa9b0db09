"""How values are shown: times, states, and stored JSON with its secrets hidden.

Everything comes out of ``format_html`` or as plain text, which templates escape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, tzinfo
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings as django_settings
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..conf import settings

Text = str | Promise

HIDDEN = "•••"


def local(value: datetime) -> datetime:
    """Return an aware time in the current time zone, whatever USE_TZ says."""
    zone = timezone.get_current_timezone()
    if not django_settings.USE_TZ:
        zone = timezone.get_default_timezone()
    return value.astimezone(zone)


def moment(value: datetime | None, zone: tzinfo | None = None) -> SafeString | str:
    """Show a time to the second, with its instant in UTC behind it.

    In ``zone``, and by its name where the clock there shows another time than the reader's.
    """
    if value is None:
        return "-"
    here = local(value)
    there = here if zone is None else value.astimezone(zone)
    name = "" if there.utcoffset() == here.utcoffset() else f" {there.tzname()}"
    return format_html(
        '<time class="ddj-time" datetime="{}" title="{}"><span>{}</span> <span>{}{}</span></time>',
        value.isoformat(),
        value.strftime("%Y-%m-%d %H:%M:%S.%f UTC"),
        *there.strftime("%Y-%m-%d %H:%M:%S").split(),
        name,
    )


def plain_moment(value: datetime, zone: tzinfo | None = None) -> str:
    """Tell a time to the second in a line of plain text, with the name of its clock."""
    there = local(value) if zone is None else value.astimezone(zone)
    return there.strftime("%Y-%m-%d %H:%M:%S %Z")


def zone_of(name: str) -> tzinfo | None:
    """Return a stored time zone; None where this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return None


def isolated(text: object) -> SafeString:
    """Show somebody's words in a line: marks of direction in them end with them."""
    return format_html("<bdi>{}</bdi>", text)


def lines(parts: Iterable[SafeString | str]) -> SafeString | str:
    """Show some things one below the other, without those that say nothing."""
    said = (part for part in parts if part and part != "-")
    return format_html_join("", '<div class="ddj-line">{}</div>', ((part,) for part in said)) or "-"


def cut(text: str, limit: int = 120) -> SafeString | str:
    """Show the beginning of a text in one line, and the whole of it on hovering."""
    line = " ".join(text.split())
    if not line:
        return "-"
    if len(line) > limit:
        line = f"{line[:limit].rstrip()}…"
    return format_html('<span class="ddj-cut" title="{}"><bdi>{}</bdi></span>', text[:1_024], line)


def span(start: datetime | None, end: datetime | None) -> str:
    """Show how long something took, as precisely as a person wants it."""
    if start is None or end is None:
        return "-"
    seconds = max((end - start).total_seconds(), 0)
    if seconds < 1:
        return _("%(number)d ms") % {"number": round(seconds * 1000)}
    if seconds < 120:
        return _("%(number).1f s") % {"number": seconds}
    minutes = int(seconds // 60)
    if minutes < 120:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": seconds % 60}
    hours = minutes // 60
    if hours < 48:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes % 60}
    return _("%(days)d d %(hours)d h") % {"days": hours // 24, "hours": hours % 24}


def duration(seconds: float) -> str:
    """Tell a duration in few characters, as the labels of a plot want it."""
    if seconds < 1:
        return _("%(number)s ms") % {"number": f"{seconds * 1000:.3g}"}
    for limit, unit, text in (
        (60, 1, _("%(number)s s")),
        (3_600, 60, _("%(number)s min")),
        (172_800, 3_600, _("%(number)s h")),
    ):
        if seconds < limit:
            return text % {"number": f"{seconds / unit:.3g}"}
    return _("%(number)s d") % {"number": f"{seconds / 86_400:.3g}"}


def short_id(value: UUID) -> str:
    """Return the part of an id that tells rows of one moment apart, as the worker prints it."""
    return str(value)[-8:]


def state(value: str, label: Text) -> SafeString:
    """Show a state in words; the mark before it is only a help."""
    name = value if value.isalpha() else "unknown"  # a class name, whatever the row says
    return format_html('<span class="ddj-state ddj-{}">{}</span>', name, label)


def block(text: str, label: Text) -> SafeString | str:
    """Show text of several lines as it stands; it scrolls by keyboard too."""
    if not text:
        return "-"
    return format_html(
        '<pre class="ddj-text" tabindex="0" role="region" aria-label="{}">{}</pre>', label, text
    )


def quiet(text: Text, title: str = "") -> SafeString:
    """Show something that is beside the point."""
    return format_html('<span class="ddj-quiet" title="{}">{}</span>', title, text)


def hidden() -> SafeString:
    """Say that there is something which this user may not see."""
    why = _("hidden: it takes the permission to see payloads and results")
    return format_html('<span class="ddj-hidden">{}</span>', why)


def json_text(text: str | None, *, secrets: bool) -> str:
    """Return stored JSON as indented text, masked unless ``secrets``; "" where there is none.

    What cannot be read is told of, and shown as it is stored to those who may see secrets: no
    key can be masked in it.
    """
    if text is None:
        return ""
    try:
        value = json.loads(text)
        shown = value if secrets else masked(value, settings.MASK)
        return json.dumps(shown, indent=2, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError) as error:
        problem = _("This is no JSON: its row was edited by hand (%(error)s).") % {"error": error}
        return f"{problem}\n\n{text}" if secrets else problem


def json_is(text: str | None, value: object) -> bool:
    """Tell whether stored JSON is this value."""
    try:
        return bool(json.loads(text or "") == value)
    except (ValueError, RecursionError):
        return False


def masked(value: Any, names: Iterable[str]) -> Any:
    """Return JSON with the values hidden of all keys that have one of ``names`` in their name."""
    names = tuple(names)
    if isinstance(value, dict):
        return {
            key: HIDDEN if _secret(key, names) else masked(item, names)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [masked(item, names) for item in value]
    return value


def _secret(key: str, names: tuple[str, ...]) -> bool:
    folded = key.casefold()
    return any(name in folded for name in names)


def plain_text(text: str, *, secrets: bool) -> str:
    """Return an error's text, without what looks like a secret unless ``secrets``."""
    if secrets or not text:
        return text
    text = re.sub(r"(?<=://)[^\s/@]+(?=@)", HIDDEN, text)
    names = "|".join(re.escape(name) for name in settings.MASK)
    if not names:
        return text
    named = rf"([\w-]*(?:{names})[\w-]*[\"']?\s*[:=]\s*(?:(?:bearer|basic)\s+)?)"
    value = r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;)}\]]+)"
    return re.sub(named + value, rf"\1{HIDDEN}", text, flags=re.IGNORECASE)
