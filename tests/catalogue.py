"""Reading a catalogue of translations, and what the sources have in them to be translated."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from django.utils.translation.template import templatize

import django_durable_jobs

PACKAGE = Path(django_durable_jobs.__file__).parent
GERMAN = PACKAGE / "locale/de/LC_MESSAGES/django.po"
# What each function takes before anything else: a context, a text, its plural.
CALLS = {"_": "t", "gettext": "t", "gettext_lazy": "t", "ngettext": "tp", "ngettext_lazy": "tp"}
CALLS |= {"pgettext": "ct", "pgettext_lazy": "ct", "npgettext": "ctp", "npgettext_lazy": "ctp"}


class Text(NamedTuple):
    """What is to be translated: a context, a text, and its plural; both "" where there is none."""

    context: str
    text: str
    plural: str


class Entry(NamedTuple):
    """A text of a catalogue, with its translations and flags."""

    of: Text
    translations: tuple[str, ...]
    flags: frozenset[str]


def entries(path: Path) -> list[Entry]:
    """Return what a .po file holds, but for its header."""
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    return [entry for entry in map(_entry, blocks) if entry.of.text]


def _entry(block: str) -> Entry:
    flags: set[str] = set()
    values: dict[str, str] = {}
    field = ""
    for line in block.splitlines():
        if line.startswith("#,"):
            flags |= {flag.strip() for flag in line[2:].split(",")}
        if line.startswith("#"):
            continue
        if not line.startswith('"'):
            field, _space, line = line.partition(" ")
        values[field] = values.get(field, "") + ast.literal_eval(line)
    of = Text(values.get("msgctxt", ""), values.get("msgid", ""), values.get("msgid_plural", ""))
    translations = tuple(value for name, value in values.items() if name.startswith("msgstr"))
    return Entry(of, translations, frozenset(flags))


def compiled(path: Path) -> dict[object, str]:
    """Return what the .mo file beside a .po file holds, by what gettext looks it up by."""
    with path.with_suffix(".mo").open("rb") as file:
        held: dict[object, str] = dict(gettext.GNUTranslations(file)._catalog)  # type: ignore[attr-defined]
    held.pop("", None)
    return held


def marked() -> set[Text]:
    """Return what the package's sources mark for translation."""
    found: set[Text] = set()
    for source in PACKAGE.rglob("*.py"):
        found |= set(_called(ast.parse(source.read_text(encoding="utf-8"))))
    for template in PACKAGE.rglob("*.html"):
        for call in _calls(templatize(template.read_text(encoding="utf-8"))):
            found |= set(_called(ast.parse(call)))
    return found


def _calls(code: str) -> Iterator[str]:
    """Return the calls in what Django makes of a template for xgettext, which is no Python."""
    string = r"""u?(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
    pattern = rf"\b(\w*gettext|_)\(({string}(?:,\s*{string})*)"
    for name, arguments in re.findall(pattern, code):
        yield f"{name}({arguments})"


def _called(tree: ast.AST) -> Iterator[Text]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        shape = CALLS.get(node.func.id, "")
        given = {
            kind: argument.value
            for kind, argument in zip(shape, node.args, strict=False)
            if isinstance(argument, ast.Constant)
        }
        if "t" in given:
            values = [str(given.get(kind, "")) for kind in "ctp"]
            yield Text(*values)
