"""Whose turn it is: what every deal keeps to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_durable_jobs.turns import circle, deal

OWNERS = ["", "a", "aa", "b", "B", "é", "𝄞", "z", "\u00ff"]
Heads = dict[str, list[str]]

names = st.sampled_from(OWNERS)
counts = st.dictionaries(names, st.integers(0, 6))
slots = st.integers(0, 20)
rooms = st.dictionaries(names, st.integers(-1, 4))


def jobs(counts: dict[str, int]) -> Heads:
    return {owner: [f"{owner}/{number}" for number in range(n)] for owner, n in counts.items()}


def owner_of(job: str) -> str:
    return job.rsplit("/")[0]


def limit(owner: str, heads: Heads, room: dict[str, int]) -> int:
    return max(0, min(len(heads[owner]), room.get(owner, len(heads[owner]))))


@given(st.sets(names), names)
def test_the_circle_holds_every_owner_once_and_starts_behind_the_last(
    owners: set[str], after: str
) -> None:
    order = circle(owners, after)
    assert sorted(order) == sorted(owners)
    behind = [owner for owner in order if owner > after]
    assert order == sorted(behind) + sorted(owners - set(behind))


@given(counts, names, slots, rooms)
def test_a_deal_fills_the_slots_and_gives_nobody_more_than_there_is_room_for(
    counts: dict[str, int], after: str, slots: int, room: dict[str, int]
) -> None:
    heads = jobs(counts)
    taken, _ = deal(heads, after, slots=slots, room=room)
    possible = {owner: limit(owner, heads, room) for owner in heads}
    assert len(taken) == min(slots, sum(possible.values()))
    for owner in heads:
        assert sum(owner_of(job) == owner for job in taken) <= possible[owner]


@given(counts, names, slots, rooms)
def test_nobody_gets_a_second_job_before_everybody_got_a_first(
    counts: dict[str, int], after: str, slots: int, room: dict[str, int]
) -> None:
    heads = jobs(counts)
    taken, _ = deal(heads, after, slots=slots, room=room)
    had = dict.fromkeys(heads, 0)
    for job in taken:
        owner = owner_of(job)
        waiting = [other for other in heads if had[other] < limit(other, heads, room)]
        assert had[owner] == min(had[other] for other in waiting)
        had[owner] += 1


@given(counts, names, slots, rooms)
def test_an_owners_own_order_is_kept(
    counts: dict[str, int], after: str, slots: int, room: dict[str, int]
) -> None:
    heads = jobs(counts)
    taken, _ = deal(heads, after, slots=slots, room=room)
    for owner, own in heads.items():
        got = [job for job in taken if owner_of(job) == owner]
        assert got == own[: len(got)]


@given(counts, names, slots, rooms)
def test_the_turn_is_the_last_owner_who_was_dealt_to(
    counts: dict[str, int], after: str, slots: int, room: dict[str, int]
) -> None:
    taken, turn = deal(jobs(counts), after, slots=slots, room=room)
    assert turn == (owner_of(taken[-1]) if taken else after)


@given(counts, names, st.lists(st.integers(0, 5), max_size=5))
def test_several_small_deals_are_as_fair_as_one_big_one(
    counts: dict[str, int], after: str, parts: list[int]
) -> None:
    """Going on from the returned turn, an owner waits no more than one round for its next job."""
    heads, dealt = jobs(counts), []
    turn = after
    for part in parts:
        taken, turn = deal(heads, turn, slots=part, room={})
        dealt += taken
        heads = {owner: [job for job in own if job not in taken] for owner, own in heads.items()}
    had = dict.fromkeys(counts, 0)
    for job in dealt:
        had[owner_of(job)] += 1
    waiting = [owner for owner in counts if had[owner] < counts[owner]]
    if waiting:
        assert max(had.values()) <= min(had[owner] for owner in waiting) + 1


@given(st.sets(names, min_size=1), names, slots, slots)
def test_while_everybody_has_jobs_two_deals_are_one_bigger_deal(
    owners: set[str], after: str, first: int, second: int
) -> None:
    heads = jobs(dict.fromkeys(owners, first + second))
    whole, last = deal(heads, after, slots=first + second, room={})
    taken, turn = deal(heads, after, slots=first, room={})
    rest = {owner: [job for job in own if job not in taken] for owner, own in heads.items()}
    more, turn = deal(rest, turn, slots=second, room={})
    assert (taken + more, turn) == (whole, last)
