"""docs/seed.md tells of everything the seed does, and every test of it is in its tables."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "check_seed.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    if not SCRIPT.exists():
        pytest.skip("only a checkout has the script")
    spec = importlib.util.spec_from_file_location("check_seed", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_seed"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_and_the_tests_agree(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    code = script.main()
    assert (code, capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| `tick` | x | **kept** | | `test_none` |", "there is no test_none"),
        ("| `tick` | x | **kept** | | |", "has neither a test nor a reason"),
        ("| `tick` | x | some words | | `test_a` |", "says none of"),
        ("| `tick` | x | **changed** | | `test_a` |", "changed, but no test of it says so"),
        ("| `tick` | x | **kept** | | `test_b` |", "test_b shows a change"),
        ("| `tick` | x | **kept** | | `test_a` |", "test_b is in no row"),
        ("| `tick` | x | **kept** | | `test_a` |", "no row for start"),
        ("| `tick` | x | **kept** | | `test_a` |", "no row for ctx.now"),
        ("| `tick` | x | **kept** | | `test_a` |", 'no row tells of the error "is too long"'),
    ],
)
def test_the_script_sees(row: str, problem: str, script: ModuleType) -> None:
    found = script.problems_of(
        list(script.rows_of(row)), {"test_a": "", "test_b": "changed: something."}
    )
    assert any(problem in each for each in found)


def test_the_script_sees_a_broken_row(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="4 cells"):
        list(script.rows_of("| `tick` | x | **kept** | why |"))
