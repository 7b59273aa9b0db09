"""The page of settings says what `conf` does."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from django_durable_jobs.conf import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
ROW = re.compile(r"^\| `([A-Z_]+)` \| `(.+?)` \| (.+?) \| (.+?) \|$", re.MULTILINE)

KEYS: dict[str, Any] = {
    name: key for name, key in vars(Settings).items() if name.isupper() and hasattr(key, "accepts")
}
ROWS = {name: rest for name, *rest in ROW.findall(PAGE.read_text())}


def test_the_page_has_each_key_once_and_no_other() -> None:
    named = re.findall(r"^\| `([A-Z_]+)`", PAGE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(KEYS)
    assert ROWS.keys() == KEYS.keys()


def test_the_page_gives_the_defaults() -> None:
    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    told = {name: eval(row[0], {"timedelta": timedelta}) for name, row in ROWS.items()}
    assert told == {name: plain(key.default) for name, key in KEYS.items()}


def test_the_page_says_what_is_accepted() -> None:
    assert {name: row[1] for name, row in ROWS.items()} == {
        name: key.accepts.words for name, key in KEYS.items()
    }
