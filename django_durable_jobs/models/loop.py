"""Loop records: the user's own rows that recur; each due time becomes a job."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any, ClassVar, TypedDict, TypeVar

from django.core.exceptions import ValidationError
from django.db import connections, models, router
from django.db.models.signals import class_prepared
from django.db.transaction import atomic
from django.dispatch import receiver
from django.utils.timezone import get_default_timezone_name
from django.utils.translation import gettext_lazy as _
from model_utils import FieldTracker
from model_utils.tracker import FieldInstanceTracker

from .. import registry, signals
from ..db import current_clock, transaction
from ..errors import InvalidJob, InvalidRecurrence
from ..fields import IdentifierField, JSONValueField, UTCDateTimeField
from ..jobspec import JobSpec
from ..recurrence import Cron, Every, Recurrence

R = TypeVar("R", bound="LoopRecord")

# What the machinery writes while somebody holds the record in memory: saved only where changed.
KEPT_BY_SYNC = (
    *("next_run_at", "schedule_identity", "schedule_epoch", "needs_owner"),
    *("last_occurrence_at", "last_error", "synced"),
)
_FIELD_OF = {
    "invalid-cron": "cron",
    "cron-no-fire": "cron",
    "invalid-timezone": "timezone",
    "invalid-interval": "every",
    "invalid-baseline": "baseline",
}


def whole_milliseconds(moment: datetime) -> datetime:
    """Return the instant without what is less than a millisecond.

    Django's fixtures lose that, and a record that comes back from one is to be the same.
    """
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


# SQLite may bind no more than 999 values.
_PART = 500


class LoopQuerySet(models.QuerySet[R]):
    """Loop records; what writes many of them at once syncs them, some hundred to a statement.

    Raw SQL, fixtures and other managers do not: their changes are found by the next reconcile.
    """

    gone: dict[type[models.Model], list[Any]] | None = None  # what a delete() took, by model

    def update(self, **values: Any) -> int:
        """Update the records and their jobs, in one transaction."""
        self._for_write = True
        values.setdefault("updated_at", whole_milliseconds(datetime.now(UTC)))
        with transaction(self.db):
            # Afterwards the filter may find others.
            keys = list(self.values_list(_root_key(self.model), flat=True))
            count = super().update(**values)
            signals.loops_written(self.model, keys, self.db)
        return count

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable[R], *args: Any, **options: Any) -> list[R]:
        """Create records and the jobs of their next due times, in one transaction."""
        self._for_write = True
        objs, moment = list(objs), whole_milliseconds(datetime.now(UTC))
        for each in objs:
            if each._state.db is not None:
                each.begin_anew()
            each.updated_at = each.updated_at or moment
        if options.get("update_fields"):
            options["update_fields"] = {*options["update_fields"], "updated_at"}
        with transaction(self.db):
            made = super().bulk_create(objs, *args, **options)
            # Without keys (ignore_conflicts) they wait for the next reconcile.
            by_key = {each.pk: each for each in made if each.pk is not None}
            keys = list(by_key)
            signals.loops_written(self.model, keys, self.db)
            for start in range(0, len(keys), _PART):
                rows = self.model._base_manager.using(self.db)
                rows = rows.filter(pk__in=keys[start : start + _PART])
                for kept in rows.values("pk", *KEPT_BY_SYNC):
                    by_key[kept.pop("pk")].take(kept)
        return made

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the records and cancel their jobs, in one transaction."""
        self._for_write = True
        with transaction(self.db):
            self.gone = {}
            try:
                result = super().delete()
                for model, keys in self.gone.items():
                    signals.loops_written(model, keys, self.db)
            finally:
                self.gone = None
        return result

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


def _root_key(model: type[models.Model]) -> str:
    """Return the name of the key of the table that holds the recurrence."""
    return str(model._meta.get_field("schedule_epoch").model._meta.pk.name)


class OccurrenceOptions(TypedDict, total=False):
    """How the jobs of a model's occurrences run, as a handler's options say it."""

    timeout: float | timedelta | None
    queue: str
    priority: int


class LoopRecord(models.Model):
    """A row that recurs: by ``cron``, by ``every``, or once at ``next_run_at`` with neither.

    Inherit from it, write ``trigger``, and save rows: each due time of an enabled record becomes
    a job of its owner. ``every`` is a timedelta of a second or more, ``baseline`` the time of day
    that its grid starts from; ``timezone`` is an IANA name, blank for the project's. Only
    ``next_run_at`` may be set by hand; what follows it is the machinery's. ``occurrence_options``
    of the class says how its occurrences run: ``timeout`` (seconds or a timedelta), ``queue``,
    ``priority``.
    """

    occurrence_options: ClassVar[OccurrenceOptions] = {}

    cron = models.CharField(_("cron"), max_length=256, blank=True, default="")
    every = models.DurationField(_("every"), null=True, blank=True)
    baseline = models.TimeField(_("baseline"), null=True, blank=True)
    timezone = models.CharField(_("time zone"), max_length=64, blank=True, default="")
    enabled = models.BooleanField(_("enabled"), default=True)
    owner_id = IdentifierField(_("owner"), max_length=256, blank=True, default="")
    next_run_at = UTCDateTimeField(_("next run at"), null=True, blank=True)
    # Which schedule this is, whatever becomes of the row's key, and how often it was edited: an
    # occurrence is told from others by both.
    schedule_identity = models.UUIDField(default=uuid.uuid4, editable=False)
    schedule_epoch = models.PositiveIntegerField(default=0, editable=False)
    needs_owner = models.BooleanField(_("needs an owner"), default=False, editable=False)
    last_occurrence_at = UTCDateTimeField(_("last occurrence"), null=True, editable=False)
    last_error = models.TextField(_("last error"), blank=True, default="", editable=False)
    updated_at = UTCDateTimeField(_("updated at"), editable=False)  # the record's revision
    # Of the recurrence and the occurrence that were synced last: finds edits without a signal.
    synced = models.CharField(max_length=130, blank=True, default="", editable=False)

    objects = LoopQuerySet.as_manager()
    tracker: Any  # a FieldTracker of KEPT_BY_SYNC

    class Meta:
        abstract = True

    def save(self, *args: Any, **options: Any) -> None:
        """Save the record and its job in one transaction.

        What the machinery keeps (the next time, the epoch) is written only if it was changed here:
        it may have gone on since this object was read.
        """
        if options.get("update_fields") is not None and not options["update_fields"]:
            return  # as Django has it
        using = options.get("using") or router.db_for_write(type(self), instance=self)
        moment = whole_milliseconds(datetime.now(UTC))
        if self.updated_at is not None:
            moment = max(moment, self.updated_at + timedelta(milliseconds=1))
        self.updated_at = moment
        if options.get("update_fields"):
            options["update_fields"] = {*options["update_fields"], "updated_at"}
        with atomic(using=using):
            super().save(*args, **options)

    def _do_update(self, *args: Any) -> Any:
        # Their order is Django's, from 5.2 to 6.1: base_qs, using, pk_val, values, …
        base_qs, using, pk_val, values, *rest = args
        if not self._state.adding:
            values = [each for each in values if not self._is_left(each[0].name)]
        return super()._do_update(base_qs, using, pk_val, values, *rest)

    def _is_left(self, name: str) -> bool:
        """Tell whether a column is the machinery's, and was not changed here."""
        # Without a saved value it was deferred when it was set.
        saved = self.tracker.saved_data
        return name in KEPT_BY_SYNC and name in saved and not self.tracker.has_changed(name)

    def _do_insert(self, *args: Any, **options: Any) -> Any:
        if self._state.db is not None:
            self.begin_anew()
        return super()._do_insert(*args, **options)  # type: ignore[misc]

    def begin_anew(self) -> None:
        """Be another record than the one that was read: a copy, or a row that is put in again.

        With the same identity its occurrences would be taken for the other's.
        """
        self.schedule_identity = uuid.uuid4()
        self.schedule_epoch = 0
        self.needs_owner = False
        self.last_occurrence_at = None
        self.last_error = self.synced = ""

    def take(self, kept: Mapping[str, Any]) -> None:
        """Take over what the machinery has stored; what was not loaded stays so."""
        loaded = [name for name in kept if name in self.__dict__]
        for name in loaded:
            setattr(self, name, kept[name])
        self.tracker.set_saved_fields(fields=loaded)

    def run_now(self) -> None:
        """Have the record run at once: what it was waiting for gives way to this.

        Afterwards it goes on by its schedule; an interval counts from here. Raises
        InvalidRecurrence, and writes nothing, where it has a recurrence that is none. One that is
        disabled, or has no owner where it must have one, does not run.
        """
        self.get_recurrence()
        using = router.db_for_write(type(self), instance=self)
        self.next_run_at = current_clock().now(connections[using])
        self.save(update_fields=["next_run_at"])

    # What a host model says

    def trigger(self, prepared: Any) -> None:
        """Do the work of one occurrence, with what ``prepare`` returned."""
        raise NotImplementedError(f"{type(self).__name__} has no trigger()")

    def prepare(self, occurrence_at: datetime) -> Any:
        """Reserve what the occurrence needs, and return what ``trigger`` is to get.

        Whatever it raises refuses the occurrence: the job fails, and the record goes on.
        """
        return None

    def authorize(self, owner_id: str) -> bool:
        """Tell whether this owner may run the record now; until then its job waits."""
        return True

    def can_run(self) -> bool:
        """Tell whether the record may run now; until then its job waits."""
        return True

    def get_owner_id(self) -> str:
        """Return who owns the record, "" for nobody; asked where MULTI_USER is on."""
        return str(self.owner_id)

    def get_project_id(self) -> str:
        """Return the project that the record's jobs belong to."""
        return "default"

    # The schedule

    def get_recurrence(self) -> Recurrence | None:
        """Return when the record recurs, None for a one-shot. Raises InvalidRecurrence."""
        zone = self.timezone or get_default_timezone_name()
        return _recurrence(self.cron, self.every, self.baseline, zone)

    def clean(self) -> None:
        """Refuse a recurrence that is none and an owner that can be none, at the field."""
        super().clean()
        problems = {}
        try:
            self.get_recurrence()
        except InvalidRecurrence as error:
            problems[_FIELD_OF.get(error.code, "cron")] = str(error)
        try:
            JobSpec(type="loop-occurrence", owner_id=self.owner_id, namespace="default")
        except InvalidJob as error:
            problems["owner_id"] = str(error)
        if problems:
            raise ValidationError(problems)


@functools.lru_cache(maxsize=1_024)
def _recurrence(
    cron: str, every: timedelta | None, baseline: time | None, zone: str
) -> Recurrence | None:
    """Return the rule of these columns: most records share theirs with others."""
    if cron and every is not None:
        raise InvalidRecurrence(
            "every: the record has a cron expression already; accepted: one of them.",
            code="invalid-interval",
        )
    if baseline is not None and every is None:
        raise InvalidRecurrence(
            "baseline: goes with every, not with cron or a single run.", code="invalid-baseline"
        )
    if cron:
        return Cron(cron, zone)
    return None if every is None else Every(every, baseline=baseline, timezone=zone)


class _Saved(FieldInstanceTracker):
    """What was saved of one record. No copies: none of these values can be changed in place."""

    def set_saved_fields(self, fields: Iterable[str] | None = None) -> None:
        here = self.instance.__dict__
        if fields is None or not self.instance.pk:
            self.saved_data = {}
        if self.instance.pk:
            names = self.fields if fields is None else fields
            self.saved_data |= {name: here[name] for name in names if name in here}


class _Tracker(FieldTracker):
    """A tracker that leaves the attributes as they are.

    The descriptors that it would put over them are for deferred fields, and have each look at an
    attribute go through all fields: reading a record took three times as long. ``_is_left`` takes
    care of deferred fields.
    """

    tracker_class = _Saved

    def finalize_class(self, sender: type[models.Model], **kwargs: object) -> None:
        self.fields = set(self.fields)
        self.field_map = self.get_field_map(sender)
        self.model_class = sender
        self.patch_init(sender)
        self.patch_save(sender)
        setattr(sender, self.name, self)


@receiver(class_prepared)
def _track(sender: type[models.Model], **kwargs: Any) -> None:
    """Give each table of loop records a tracker: one of an abstract model's is not inherited."""
    if not issubclass(sender, LoopRecord) or sender._meta.abstract:
        return
    if sender._meta.get_field("schedule_epoch").model is sender:
        tracker = _Tracker(fields=KEPT_BY_SYNC)
        tracker.contribute_to_class(sender, "tracker")
        tracker.finalize_class(sender)


class Loop(LoopRecord):
    """A recurring job that staff add without code: a registered type, and a payload for it."""

    id = models.BigAutoField(primary_key=True)
    name = IdentifierField(_("name"), max_length=200, unique=True)
    job_type = IdentifierField(_("job type"), max_length=256)
    payload = JSONValueField(_("payload"), default=dict, blank=True)

    class Meta:
        verbose_name = _("loop")
        verbose_name_plural = _("loops")
        permissions = [
            ("sync_loop", _("Can sync loops")),
            ("fire_loop", _("Can run loops now")),
        ]

    def __str__(self) -> str:
        return str(self.name)

    def clean(self) -> None:
        """Refuse a job that nobody here can run, and a payload that it does not take."""
        super().clean()
        handler = registry.get(self.job_type)
        if handler is None:
            raise ValidationError({"job_type": _("No handler is registered for this type.")})
        try:
            handler.parameters.check(handler.parameters.encode(self.payload))
        except InvalidJob as error:
            raise ValidationError({"payload": str(error)}) from error

    def prepare(self, occurrence_at: datetime) -> str:
        return f"loop:{self.pk}:{occurrence_at.isoformat()}"

    def trigger(self, prepared: str) -> None:
        handler = registry.get(self.job_type)
        if handler is None:
            raise InvalidJob(f"job_type: {self.job_type!r} has no handler here", field="job_type")
        # With a key: an occurrence that an operator has run again puts in no second job.
        registry.enqueue_now(
            handler,
            self.payload,
            {
                "owner_id": self.owner_id,
                "project_id": self.get_project_id(),
                "idempotency_key": prepared,
            },
        )
