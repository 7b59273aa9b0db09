"""Whose turn it is: free slots are dealt one job per owner per round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def circle(owners: Iterable[str], after: str) -> list[str]:
    """Return ``owners`` in turn order: the ones behind ``after`` first, then round to it.

    Owners sort by code point, as the databases' exact collations do.
    """
    return sorted(set(owners), key=lambda owner: (owner <= after, owner))


def deal(
    heads: Mapping[str, Sequence[T]],
    after: str,
    *,
    slots: int,
    room: Mapping[str, int],
) -> tuple[list[T], str]:
    """Deal ``slots`` to the owners' waiting jobs; return the jobs taken and the new turn.

    ``heads`` holds each owner's next jobs in their own order; ``after`` is the owner who was dealt
    the last slot before; ``room`` says how many more jobs an owner may have (an owner that is not
    in it is not limited). Rounds of one job per owner repeat until slots or jobs run out (the
    seed's dueByFairOwner). The new turn is the owner who was dealt the last slot.
    """
    order = circle(heads, after)
    taken: list[T] = []
    for round_number in range(slots):
        dealt = False
        for owner in order:
            if len(taken) == slots:
                return taken, after
            if round_number < min(len(heads[owner]), room.get(owner, slots)):
                taken.append(heads[owner][round_number])
                after = owner
                dealt = True
        if not dealt:
            break
    return taken, after
