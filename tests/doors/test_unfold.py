"""The admin's pages on django-unfold's base class, in a project of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.databases import subprocess_environment

pytestmark = [pytest.mark.once, pytest.mark.processes]

# What each page has of ours, whatever is around it.
PARTS = {
    "overview": ['id="ddj-workers"', 'id="ddj-ended"', "overview.css"],
    "job list": ["ddj-state ddj-queued", 'id="searchbar"', "cancel_selected"],
    "execution list": ["ddj-state ddj-failed"],
    "worker list": ["host.example"],
    "schedule list": ["0 2 * * *"],
    "tickclaim list": ["admin.css"],
    "tickgap list": ["admin.css"],
    "loop list": ["/loop/sync/"],
    "job page": ['id="ddj-executions"', "/cancel/", "It can run now"],
    "execution page": ["ValueError: no"],
    "worker page": ["host.example"],
    "schedule page": ['id="ddj-ledger"', "/pause/"],
    "loop page": ['id="ddj-preview"', "/run_now/", 'name="_preview"'],
    "preview": ["every 5 minutes"],
    "question": ["Yes, cancel", 'name="confirmed"', 'name="reason"'],
    "answer": ["Cancelled: 1."],
    "state": ["cancelled"],
}


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[int, str]]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.unfolded"],
        env=subprocess_environment() | {"DJANGO_SETTINGS_MODULE": "tests.unfolded"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found: dict[str, tuple[int, str]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_each_page_is_there_with_our_parts_in_it_and_a_job_can_be_cancelled(
    answers: dict[str, tuple[int, str]],
) -> None:
    assert set(answers) == set(PARTS)
    assert [name for name, (status, _text) in answers.items() if status != 200] == []
    assert [
        (name, part) for name, parts in PARTS.items() for part in parts
        if part not in answers[name][1]
    ] == []  # fmt: skip


def test_the_pages_around_them_are_unfolds(answers: dict[str, tuple[int, str]]) -> None:
    bare = {"preview", "state"}
    assert {
        name for name, (_status, text) in answers.items() if "unfold/css/styles.css" in text
    } == set(answers) - bare
