"""The page of the calls says what their signatures say."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import django_durable_jobs
from django_durable_jobs import Scheduler, enqueue, errors
from django_durable_jobs.registry import EnqueueOptions, HandlerOptions

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text()
SECTIONS = {
    name: text
    for name, text in re.findall(r"^### (\w+)\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    if "```python" in text
}
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
CALL = re.compile(r"^\| `(\w+)\((.*)\)` \|", re.MULTILINE)
ERROR = re.compile(r"^\| `(\w+)` \| (?:`([a-z-]+)`)? ?\| (?:`(\w+)`)? ?\| (.*) \|$", re.MULTILINE)

Shape = list[tuple[str, Any, Any]]


def told(call: str) -> Shape:
    """Return name, kind and default of each parameter, as a call is written on the page."""
    head = call.split(" ->")[0]
    function = ast.parse(f"def {head}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    scope: dict[str, Any] = {}
    exec(f"def {head}: ...", scope)
    return shape(scope[function.name])


def shape(function: Any) -> Shape:
    parameters = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters if each.name != "self"]


def public(name: str) -> Any:
    return getattr(django_durable_jobs, name)


def test_every_public_name_is_told_of_once() -> None:
    twins = re.findall(r"Async: `(\w+)`", PAGE)
    elsewhere = ["JobContext", "JobStopped", "JobTimedOut"]
    assert sorted([*SECTIONS, *twins, *elsewhere]) == sorted(django_durable_jobs.__all__)
    assert all(f"`{name}`" in PAGE for name in elsewhere)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_call_is_written_as_it_is(name: str) -> None:
    (block,) = re.findall(r"```python\n(.*?)\n```", SECTIONS[name], re.DOTALL)
    assert block.startswith(f"{name}(")
    assert told(block) == shape(public(name))


@pytest.mark.parametrize("name", SECTIONS)
def test_each_parameter_has_a_row_in_their_order(name: str) -> None:
    assert ROW.findall(SECTIONS[name]) == [parameter for parameter, *_ in shape(public(name))]


def test_a_twin_takes_what_its_verb_takes() -> None:
    for name, text in SECTIONS.items():
        for twin in re.findall(r"Async: `(\w+)`", text):
            assert twin == ("await_job" if name == "wait" else f"a{name}")
            assert shape(public(twin)) == shape(public(name))


def test_using_takes_the_options_of_enqueue() -> None:
    options = [name for name, *_ in shape(enqueue) if name not in ("type", "payload")]
    assert list(EnqueueOptions.__annotations__) == options


def test_the_calls_of_the_scheduler_are_written_as_they_are() -> None:
    calls = dict(CALL.findall(SECTIONS["Scheduler"]))
    assert sorted(calls) == sorted(
        name
        for name, value in vars(Scheduler).items()
        if inspect.isfunction(value) and not name.startswith("_")
    )
    for name, parameters in calls.items():
        assert told(f"{name}({parameters})") == shape(getattr(Scheduler, name))


def test_each_error_has_its_code() -> None:
    rows = {name: (code, base) for name, code, base, _ in ERROR.findall(PAGE)}
    assert sorted(rows) == sorted(errors.__all__)
    for name, (code, base) in rows.items():
        error = getattr(errors, name)
        assert getattr(error, "code", "") == code
        assert base in {"", *(each.__name__ for each in error.__mro__)}
        for standard in (ValueError, LookupError):
            assert issubclass(error, standard) == (base == standard.__name__)


def test_the_options_of_handlers_have_a_row_each() -> None:
    table = (DOCS / "handlers.md").read_text().split("## Options")[1].split("\n## ")[0]
    assert sorted(ROW.findall(table)) == sorted([*HandlerOptions.__annotations__, "takes_context"])
