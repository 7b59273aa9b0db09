"""Receivers: what is saved and deleted of loop records sets their jobs right."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from django.db.models import Model
from django.db.models.signals import class_prepared, post_delete, post_save, pre_save

from . import loops, signals
from .models import LoopRecord
from .models.loop import KEPT_BY_SYNC, LoopQuerySet, OccurrenceOptions
from .registry import handlers, register_handler

_UID = "django_durable_jobs.loops"


def connect() -> None:
    """Listen to every model of loop records there is, and to those defined later."""
    signals.loop_listeners[:] = [loops.records_written]
    signals.ended_listeners[:] = [loops.jobs_ended]
    signals.requeue_guards[:] = [loops.refuse_stale]
    signals.prune_guards[:] = [loops.pointed_at]
    for model in apps.get_models():
        _on_prepared(model)
    class_prepared.connect(_on_prepared, dispatch_uid=_UID)


def _on_prepared(sender: type[Model], **kwargs: Any) -> None:
    if not issubclass(sender, LoopRecord) or sender._meta.abstract:
        return
    pre_save.connect(_before_save, sender=sender, dispatch_uid=_UID)
    post_save.connect(_on_save, sender=sender, dispatch_uid=_UID)
    post_delete.connect(_on_delete, sender=sender, dispatch_uid=_UID)
    root = loops.root_of(sender)
    if handlers.get(loops.type_of(root)) is None:
        register_handler(
            loops.type_of(root),
            loops.handler_of(root),
            can_run=loops.can_run_of(root),
            takes_context=True,
            **_options(root),
        )


def _options(root: type[LoopRecord]) -> OccurrenceOptions:
    wrong = ", ".join(set(root.occurrence_options) - set(OccurrenceOptions.__annotations__))
    if wrong:  # an attempt more would find the record at its next time
        raise TypeError(
            f"{root.__name__}.occurrence_options has {wrong}; accepted: timeout, queue, priority."
        )
    return root.occurrence_options


def _before_save(sender: type[LoopRecord], instance: LoopRecord, **kwargs: Any) -> None:
    if instance.updated_at is None:  # a fixture written by hand, which goes past save()
        instance.updated_at = datetime.now(UTC)


def _on_save(
    sender: type[LoopRecord], instance: LoopRecord, using: str, raw: bool = False, **kwargs: Any
) -> None:
    if raw:  # a fixture: what it refers to may not be there yet
        return
    root = loops.root_of(sender)
    key = loops.root_key(instance, root)
    loops.records_written(sender, [key], using)
    kept = root._base_manager.using(using).filter(pk=key).values(*KEPT_BY_SYNC).first()
    instance.take(kept or {})


def _on_delete(
    sender: type[LoopRecord], instance: LoopRecord, using: str, origin: Any = None, **kwargs: Any
) -> None:
    key = loops.root_key(instance, loops.root_of(sender))
    if isinstance(origin, LoopQuerySet) and origin.gone is not None:
        origin.gone.setdefault(loops.root_of(sender), []).append(key)  # all at once, at its end
    else:
        loops.records_written(sender, [key], using)
