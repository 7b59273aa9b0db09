"""The golden table: expressions and the instants that they fire at, worked out by hand."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from django_durable_jobs.recurrence import Cron, Every, InvalidRecurrence, Recurrence

from .walking import utc

TABLE = json.loads((Path(__file__).parent / "golden" / "recurrence.json").read_text())


def _name(row: dict[str, Any]) -> str:
    rule = row["expression"] if "expression" in row else f"every {row['interval']}"
    parts = [rule, row.get("baseline"), row.get("timezone"), row.get("why")]
    return ascii(" ".join(part for part in parts if part))


def _fires(rule: Recurrence, row: dict[str, Any]) -> None:
    after, expected = utc(row["after"]), [utc(fire) for fire in row["fires"]]
    assert rule.preview(len(expected), after) == expected
    assert all(fire.utcoffset() == timedelta() for fire in expected)
    # The same by other ways.
    assert rule.count(after, expected[-1], 1_000) == (len(expected), expected[-1])
    assert rule.last_fire(after, expected[-1]) == expected[-1]
    earlier = expected[-2] if len(expected) > 1 else None
    assert rule.last_fire(after, expected[-1] - datetime.resolution) == earlier


@pytest.mark.parametrize("row", TABLE["cron"], ids=_name)
def test_a_cron_expression_fires_at(row: dict[str, Any]) -> None:
    _fires(Cron(row["expression"], row["timezone"]), row)


@pytest.mark.parametrize("row", TABLE["every"], ids=_name)
def test_an_interval_fires_at(row: dict[str, Any]) -> None:
    anchor = utc(row["anchor"]) if "anchor" in row else None
    _fires(Every(row["interval"], row.get("baseline"), row.get("timezone"), anchor), row)


@pytest.mark.parametrize("row", TABLE["refused"], ids=_name)
def test_an_expression_is_refused_by_the_name_of_the_field(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecurrence) as caught:
        Cron(row["expression"])
    assert caught.value.code == "invalid-cron"
    assert row["words"] in str(caught.value)
    assert "accepted: " in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("expression", TABLE["never"])
def test_dates_that_never_come_are_refused(expression: str) -> None:
    with pytest.raises(InvalidRecurrence, match=r"field day of month: .* never come") as caught:
        Cron(expression)
    assert caught.value.code == "cron-no-fire"
