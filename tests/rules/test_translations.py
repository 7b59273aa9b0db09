"""The German catalogue has a translation of each text in the sources, and only of those."""

from __future__ import annotations

import re

import pytest
from django.utils.translation import override

from django_durable_jobs.recurrence import Cron, Every
from tests.catalogue import GERMAN, Entry, compiled, entries, marked

PLACEHOLDER = re.compile(r"%\(\w+\)[.\d]*[a-z]|%[sd]|\{\w*\}|%%|</?\w+>|`[^`]*`")
ALL = entries(GERMAN)


def _in(text: str) -> list[str]:
    return sorted(PLACEHOLDER.findall(text))


def test_the_catalogue_has_what_the_sources_mark_and_nothing_else() -> None:
    held, wanted = {entry.of for entry in ALL}, marked()
    # A text that is there with a plural serves without one as well.
    plural = {(text.context, text.text) for text in held if text.plural}
    wanted = {text for text in wanted if text.plural or (text.context, text.text) not in plural}
    assert wanted - held == set(), "see CONTRIBUTING.md, Translations"
    assert held - wanted == set(), "see CONTRIBUTING.md, Translations"
    assert len(held) > 600


def test_each_text_is_translated_and_none_is_a_guess() -> None:
    assert [entry.of.text for entry in ALL if "fuzzy" in entry.flags] == []
    assert [entry.of.text for entry in ALL if not all(entry.translations)] == []
    forms = [(len(entry.translations), 2 if entry.of.plural else 1) for entry in ALL]
    assert [each for each in forms if each[0] != each[1]] == []


def _faults(entry: Entry) -> list[str]:
    """Return the translations that lack a placeholder, or begin or end otherwise."""
    texts = (entry.of.text, entry.of.plural or entry.of.text)
    return [
        translation
        for text, translation in zip(texts, entry.translations, strict=False)
        if _in(translation) != _in(text)
        or (translation[-1] != text[-1] and {translation[-1], text[-1]} & set(".:;… "))
    ]


def test_a_translation_has_the_placeholders_and_the_stop_of_its_text() -> None:
    assert [fault for entry in ALL for fault in _faults(entry)] == []


def test_what_is_compiled_is_what_is_written() -> None:
    written: dict[object, str] = {}
    for entry in ALL:
        name = f"{entry.of.context}\x04{entry.of.text}" if entry.of.context else entry.of.text
        if entry.of.plural:
            written |= {(name, form): text for form, text in enumerate(entry.translations)}
        else:
            written[name] = entry.translations[0]
    assert compiled(GERMAN) == written, "see CONTRIBUTING.md, Translations"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Cron("0 2 * * *"), "um 02:00, jeden Tag"),
        (Cron("0 2 * * mon-fri"), "um 02:00, am Montag bis Freitag"),
        (Cron("0 2 L * *"), "um 02:00, am letzten Tag des Monats"),
        (Cron("0 2 1,L * *"), "um 02:00, am Monatstag 1 und am letzten Tag des Monats"),
        (Cron("30 6 * 3,10 L5"), "um 06:30, am letzten Freitag, im März und Oktober"),
        (Cron("*/15 9-17 * * *"), "alle 15 Minuten in den Stunden 9 bis 17, jeden Tag"),
        (Every(86_400, baseline="02:30"), "jeden Tag, jeden Tag ab 02:30"),
        (Every(300), "alle 5 Minuten"),
        (Every(60), "jede Minute"),
    ],
)
def test_rules_are_told_in_german(rule: Cron | Every, words: str) -> None:
    with override("de"):
        assert rule.in_words() == words
