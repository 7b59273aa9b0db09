"""Which models hold loop records, and reading a record as what it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.db import models, router

from ..models import LoopRecord

PREFIX = "loop-occurrence:"


def loop_models() -> list[type[LoopRecord]]:
    """Return the models whose tables hold loop records, each once.

    One that inherits from such a model (by tables of its own, or as a proxy) has its records in
    the same table.
    """
    return sorted({root_of(model) for model in _concrete()}, key=lambda model: model._meta.label)


def root_of(model: type[models.Model]) -> type[LoopRecord]:
    """Return the model whose table holds the recurrence of this one's records."""
    root = model._meta.get_field("schedule_epoch").model
    assert issubclass(root, LoopRecord)
    return root


def type_of(model: type[models.Model]) -> str:
    """Return the type of the jobs of this model's occurrences."""
    return PREFIX + root_of(model)._meta.label_lower


def model_of(type: str) -> type[LoopRecord] | None:
    """Return the model whose occurrences have jobs of this type, None where there is none."""
    for model in loop_models():
        if type_of(model) == type:
            return model
    return None


def key_in(root: type[LoopRecord], text: str) -> Any:
    """Return the key that a job's target names, None where it can be none of this model's."""
    try:
        return root._meta.pk.to_python(text)
    except Exception:  # a job that somebody made by hand
        return None


def root_key(record: models.Model, root: type[LoopRecord]) -> Any:
    """Return the record's key in the root's table: a model that inherits may have another one."""
    return getattr(record, root._meta.pk.attname)


def record_of(root: type[LoopRecord], key: str, using: str | None = None) -> LoopRecord | None:
    """Return the record of this key (as text), as the most special model that it is a row of."""
    alias = using or router.db_for_write(root)
    record = root._base_manager.using(alias).filter(pk=key_in(root, key)).first()
    return None if record is None else as_they_are(root, [record], alias)[0]


def as_they_are(
    root: type[LoopRecord], records: Sequence[LoopRecord], using: str
) -> list[LoopRecord]:
    """Return records read from the root's table as the most special models they are rows of."""
    special: dict[Any, LoopRecord] = {}
    keys = [record.pk for record in records]
    for model in _special(root):
        rows = model._base_manager.using(using).filter(**{f"{root._meta.pk.name}__in": keys})
        special = {root_key(row, root): row for row in rows} | special
    return [special.get(record.pk, record) for record in records]


def _concrete() -> Iterator[type[LoopRecord]]:
    for model in apps.get_models():
        if issubclass(model, LoopRecord):
            yield model


def _special(root: type[LoopRecord]) -> list[type[LoopRecord]]:
    """Return the models with tables of their own that inherit from this one, the deepest first."""
    found = [model for model in _concrete() if model is not root and issubclass(model, root)]
    own = [model for model in found if not model._meta.proxy]
    return sorted(own, key=lambda model: -len(model.__mro__))
