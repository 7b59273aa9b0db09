"""Time zones: names, and the instants at which a zone's wall clocks show a time.

Two changes of a zone's clocks matter. In a *gap* they jump forward and some times never show; in
an *overlap* they jump back and some times show twice. Wall times are naive datetimes, instants are
aware ones in UTC.
"""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.utils import timezone as django_timezone

from ..errors import InvalidRecurrence
from .grammar import quoted

__all__ = [
    "as_utc",
    "first_instant",
    "instants",
    "local_zone",
    "name_of_zone",
    "offset_at",
    "turn_near",
    "turns",
    "zone_named",
]

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


# Beside the names that Europe/Vienna is like, hosts have others for their own zone, for zones that
# count leap seconds, and for none.
_NAME = re.compile("[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_OTHERS = {"localtime", "posixrules", "Factory", "posix", "right"}


def zone_named(name: object) -> ZoneInfo:
    """Return the zone of this IANA name. Raises InvalidRecurrence, code invalid-timezone."""
    told = f"of type {type(name).__name__}"
    if isinstance(name, str):
        if _NAME.fullmatch(name) and name.split("/")[0] not in _OTHERS:
            # Reads one file at most; the list of all names would read hundreds.
            with suppress(KeyError, ValueError, OSError):
                return ZoneInfo(name)
        told = quoted(name) + _nearest(name)
    raise InvalidRecurrence(
        f"The time zone is {told}; accepted: an IANA name such as Europe/Vienna or UTC.",
        code="invalid-timezone",
    )


def name_of_zone(zone: object) -> Any:
    """Return the name of a ZoneInfo that has one; anything else as it is, to be judged."""
    return zone.key if isinstance(zone, ZoneInfo) and zone.key else zone


def _nearest(name: str) -> str:
    if len(name) > 64 or not _NAME.fullmatch(name):
        return ""
    folded = {each.casefold(): each for each in zoneinfo.available_timezones()}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return f" (did you mean {folded[near[0]]}?)" if near else ""


def local_zone(zone: ZoneInfo | None) -> ZoneInfo:
    """Return the zone, or for None the one that the project's TIME_ZONE names now."""
    return django_timezone.get_default_timezone() if zone is None else zone


def as_utc(moment: object, name: str) -> datetime:
    """Return the aware datetime in UTC. Raises TypeError and ValueError that name the argument."""
    if not isinstance(moment, datetime):
        kind = type(moment).__name__
        raise TypeError(f"{name} is of type {kind}; accepted: an aware datetime.")
    if moment.utcoffset() is None:
        raise ValueError(f"{name} is naive; accepted: an aware datetime.")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{name} is out of range in UTC; accepted: the years 1 to 9999.") from None


def first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant at which the zone's clocks show this time or a later one.

    So a time that shows twice means the first, and one inside a gap the instant of the jump.
    """
    # PEP 495: in a gap fold=0 has the offset from before the jump, in an overlap likewise.
    before, after = zone.utcoffset(wall), zone.utcoffset(wall.replace(fold=1))
    assert before is not None
    assert after is not None
    if before < after:
        return turn_near(wall, zone)
    return (wall - before).replace(tzinfo=UTC)


def instants(wall: datetime, zone: ZoneInfo) -> tuple[datetime, ...]:
    """Return the instants at which the clocks show this time: none in a gap, two in an overlap."""
    before, after = zone.utcoffset(wall), zone.utcoffset(wall.replace(fold=1))
    assert before is not None
    assert after is not None
    if before == after:
        return ((wall - before).replace(tzinfo=UTC),)
    if before < after:
        return ()
    return (wall - before).replace(tzinfo=UTC), (wall - after).replace(tzinfo=UTC)


def turn_near(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant of the jump whose gap or overlap this time lies in."""
    before, after = zone.utcoffset(wall), zone.utcoffset(wall.replace(fold=1))
    assert before is not None
    assert after is not None
    low = (wall - max(before, after)).replace(tzinfo=UTC)
    high = (wall - min(before, after)).replace(tzinfo=UTC)
    return _turn_between(low, high, zone)


def turns(zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the instants in (after, until] at which the zone's offset changes.

    Two changes that cancel each other out within a day are not seen.
    """
    low, before = after, offset_at(after, zone)
    while low < until:
        high = min(low + DAY, until)
        if (offset := offset_at(high, zone)) != before:
            yield _turn_between(low, high, zone)
        low, before = high, offset


def _turn_between(low: datetime, high: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant, a whole second, with another offset than `low` has."""
    before = offset_at(low, zone)
    low, high = low.replace(microsecond=0), high.replace(microsecond=0)
    while high - low > SECOND:
        middle = low + timedelta(seconds=(high - low) // SECOND // 2)
        if offset_at(middle, zone) == before:
            low = middle
        else:
            high = middle
    return high


def offset_at(moment: datetime, zone: ZoneInfo) -> timedelta:
    """Return how far the zone's clocks are ahead of UTC at this instant."""
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset
