"""Plots are sound SVG inside their view box, whatever they are given."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_jobs.admin import plots
from django_durable_jobs.figures import Lane, Run

START = datetime(2026, 3, 1, 11, tzinfo=UTC)
# What XML cannot hold at all is no matter of escaping.
WORDS = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\ufffe\uffff")
)
VALUES = st.one_of(
    st.none(), st.just(0.0), st.floats(0, 1e18, allow_nan=False), st.floats(1e-7, 1.0)
)
COORDINATES = {"x", "x1", "x2", "cx", "y", "y1", "y2", "cy", "width", "height"}


def frame(count: int, *, bucket: int = 60, covered: int = 0, words: str = "words") -> plots.Frame:
    return plots.Frame(
        id="plot",
        title=words,
        description=words,
        starts=[START + timedelta(seconds=bucket * n) for n in range(count)],
        bucket=bucket,
        covered=[n >= covered for n in range(count)],
    )


def numbers_of(element: ET.Element) -> dict[str, float]:
    found = {}
    for name, value in element.attrib.items():
        if name in COORDINATES and value != "100%":
            found[name] = float(value)
    return found


def assert_sound(svg: str) -> ET.Element:
    """Assert that it is XML that a strict policy lets through, with all of it in the view box."""
    assert not re.search(r"\bnan\b|\binf\b", re.sub(r"<(title|desc)[^>]*>[^<]*", "", svg))
    root = ET.fromstring(svg)
    _x, _y, width, height = map(float, root.attrib["viewBox"].split())
    slack = 0.11  # coordinates are rounded to a tenth
    for element in root.iter():
        assert not {name for name in element.attrib if name == "style" or name.startswith("on")}
        assert element.tag not in ("script", "style", "image", "foreignObject")
        if element is root:
            continue
        at = numbers_of(element)
        for name in ("x", "x1", "x2", "cx"):
            assert -slack <= at.get(name, 0) <= width + slack
        for name in ("y", "y1", "y2", "cy"):
            assert -slack <= at.get(name, 0) <= height + slack
        assert at.get("x", 0) + at.get("width", 0) <= width + slack
        assert at.get("y", 0) + at.get("height", 0) <= height + slack
        for pair in element.attrib.get("points", "").split():
            x, y = map(float, pair.split(","))
            assert -slack <= x <= width + slack
            assert -slack <= y <= height + slack
    return root


@given(
    rows=st.integers(1, 40).flatmap(
        lambda n: st.lists(st.lists(VALUES, min_size=n, max_size=n), min_size=1, max_size=3)
    ),
    bucket=st.sampled_from([1, 60, 900]),
    covered=st.integers(0, 40),
    words=WORDS,
)
def test_plots_are_sound_whatever_the_values_and_the_names(
    rows: list[list[float | None]], bucket: int, covered: int, words: str
) -> None:
    count = len(rows[0])
    where = frame(count, bucket=bucket, covered=min(covered, count), words=words)
    series = [plots.Series(f"p{n}", words, row) for n, row in enumerate(rows)]
    for draw in (plots.bars, plots.lines):
        root = assert_sound(draw(where, series))
        title, description = root[0], root[1]
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-labelledby"].split() == [
            title.attrib["id"],
            description.attrib["id"],
        ]
        assert (title.text or "", description.text or "") == (words, words)


RUNS = st.builds(
    lambda state, start, length: Run(
        state,
        START + timedelta(seconds=start),
        None if length is None else START + timedelta(seconds=start + length),
    ),
    st.sampled_from(["completed", "failed", "interrupted", "running", "claimed", "released", "?"]),
    st.floats(-2_000, 2_000),
    st.none() | st.floats(0, 3_000),
)


@given(st.lists(RUNS, max_size=60))
def test_lanes_are_sound_however_executions_overlap(runs: list[Run]) -> None:
    lane = Lane(UUID(int=1), "host:1", tuple(sorted(runs, key=lambda run: run.start)))
    root = assert_sound(plots.lane(lane, START, START + timedelta(minutes=15)))
    assert len(root) <= 2 * plots.CELLS * plots.MOST_TRACKS
    assert float(root.attrib["height"]) <= plots.TRACK * plots.MOST_TRACKS


@given(st.integers(0, 10_000), st.integers(0, 1_000), st.integers(0, 20_000))
def test_the_bars_of_owners_are_sound(due: int, active: int, most: int) -> None:
    assert_sound(plots.share_bar(due, active, most))


@given(st.one_of(st.floats(0, 1e300, allow_nan=False), st.just(0.0)))
def test_ticks_begin_at_nought_reach_over_the_highest_value_and_are_few(highest: float) -> None:
    for ticks in (plots.number_ticks(highest), plots.duration_ticks(highest)):
        assert ticks[0] == 0
        assert ticks[-1] >= highest or math.isclose(ticks[-1], highest)
        assert 2 <= len(ticks) <= 5
        assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        (0, [0, 1]),
        (3.5, [0, 1, 2, 3, 4]),
        (97, [0, 50, 100]),
        (0.004, [0, 0.001, 0.002, 0.003, 0.004]),
    ],
)
def test_ticks_are_round_numbers(highest: float, ticks: list[float]) -> None:
    assert plots.number_ticks(highest) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        (100, [0, 30, 60, 90, 120]),
        (600, [0, 300, 600]),
        (7_000, [0, 1_800, 3_600, 5_400, 7_200]),
        (400_000, [0, 172_800, 345_600, 518_400]),
    ],
)
def test_ticks_of_durations_are_steps_that_clocks_have(highest: float, ticks: list[float]) -> None:
    assert plots.duration_ticks(highest) == pytest.approx(ticks)


def test_one_value_is_a_point_and_a_line_is_broken_where_there_is_none() -> None:
    alone = assert_sound(plots.lines(frame(3), [plots.Series("p50", "half", [None, 4.0, None])]))
    assert len(alone.findall("circle")) == 1
    assert alone.findall("polyline") == []
    gap = plots.lines(frame(5), [plots.Series("p50", "half", [1.0, 2.0, None, 3.0, 4.0])])
    assert len(assert_sound(gap).findall("polyline")) == 2


def test_bars_are_counts_per_minute_stacked_one_upon_the_other() -> None:
    series = [plots.Series("completed", "done", [120.0]), plots.Series("failed", "failed", [60.0])]
    root = assert_sound(plots.bars(frame(1, bucket=900), series))
    done, failed = root.findall("rect")
    assert float(failed.attrib["y"]) + float(failed.attrib["height"]) == pytest.approx(
        float(done.attrib["y"]), abs=0.02
    )
    assert [element.findtext("title", "")[-8:] for element in (done, failed)] == [
        " done: 8",
        "ailed: 4",
    ]


def test_what_was_not_looked_at_is_shaded() -> None:
    shaded = "ddj-unknown"
    assert shaded in plots.bars(frame(4, covered=2), [plots.Series("completed", "done", [1.0] * 4)])
    assert shaded not in plots.bars(frame(4), [plots.Series("completed", "done", [1.0] * 4)])


def test_what_went_wrong_and_what_went_well_in_one_place_are_both_seen() -> None:
    second = timedelta(seconds=1)
    runs = [Run("completed", START, START + second), Run("failed", START + second, START + second)]
    svg = plots.lane(Lane(UUID(int=1), "", tuple(runs)), START, START + timedelta(hours=1))
    kinds = {rect.attrib["class"].split()[-1] for rect in assert_sound(svg).findall("rect")}
    assert kinds == {"ddj-fill-completed", "ddj-fill-failed"}
