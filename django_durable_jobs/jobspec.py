"""What a job is asked to be, before it is a row: validated, copied, comparable."""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID, uuid4

from django.conf import settings
from django.utils import timezone

from .errors import InvalidJob
from .parameters import did_you_mean
from .strictjson import Json, canonical, describe_exception, normalise, storable_text, type_name

__all__ = ["REPLACEABLE", "JobSpec", "KeyScope", "hash_key", "moment", "namespace_name"]

KeyScope: TypeAlias = Literal["ever", "live"]

# Limits. Characters are code points, bytes those of compact UTF-8 JSON.
TEXT_MAX_CHARS: Final = 256  # type, key, owner, project, target's kind and id
NAMESPACE_MAX_CHARS: Final = 64
QUEUE_MAX_CHARS: Final = 64
TARGET_MAX_BYTES: Final = 4_096
META_MAX_BYTES: Final = 4_096
PAYLOAD_MAX_BYTES: Final = 256 * 1_024
PRIORITY_MIN: Final = -100
PRIORITY_MAX: Final = 100
RUN_AT_FIRST_YEAR: Final = 1970
RUN_AT_LAST_YEAR: Final = 9998

DEFAULT_PROJECT: Final = "default"
DEFAULT_QUEUE: Final = "default"

# What `replace` may change. Namespace, id and key_scope stay for the life of a job.
REPLACEABLE: Final = (
    "type",
    "idempotency_key",
    "owner_id",
    "project_id",
    "target",
    "payload",
    "run_at",
    "priority",
    "queue",
    "meta",
)
_NONE_IS_A_VALUE: Final = frozenset({"payload", "run_at", "meta"})

_CONTROL_OR_SURROGATE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UUID = re.compile("[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NAME_IN_MESSAGE_CHARS = 100
_PACKAGE = f"{__package__}."


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class JobSpec:
    """Hold what `enqueue` takes, validated: a JobSpec that exists can be stored.

    `run_at` is aware and in UTC; None means now, by the database's clock. JSON values are deep
    copies of what was passed. Specs are equal if they mean the same job: see `fingerprint`.
    """

    namespace: str
    type: str
    payload: Json
    run_at: datetime | None
    owner_id: str
    project_id: str
    target: dict[str, Json]
    idempotency_key: str
    key_scope: KeyScope
    priority: int
    queue: str
    meta: dict[str, Json]
    id: UUID | None

    def __init__(
        self,
        *,
        namespace: str,
        type: str,
        payload: object = None,
        run_at: datetime | None = None,
        owner_id: str = "",
        project_id: str = DEFAULT_PROJECT,
        target: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
        key_scope: KeyScope = "ever",
        priority: int = 0,
        queue: str | None = None,
        meta: dict[str, Any] | None = None,
        id: UUID | str | None = None,
    ) -> None:
        """Validate and copy every value; None takes the field's default.

        A payload of None is JSON null. The default key is a random UUID. A naive `run_at` is taken
        in the current time zone. Nothing is trimmed or converted: an int is no owner.

        Raises InvalidJob with the name of the field, the first that is wrong.
        """
        put = object.__setattr__
        put(self, "namespace", namespace_name(namespace))
        put(self, "type", _text(type, "type"))
        put(self, "payload", normalise(payload, "payload", max_bytes=PAYLOAD_MAX_BYTES))
        when = None if run_at is None else moment(run_at, "run_at", column="Job.run_at")
        put(self, "run_at", when)
        put(self, "owner_id", _text(owner_id, "owner_id", may_be_empty=True))
        put(self, "project_id", _text(project_id, "project_id"))
        put(self, "target", _target({"kind": "job", "id": self.type} if target is None else target))
        key = uuid4().hex if idempotency_key is None else _text(idempotency_key, "idempotency_key")
        put(self, "idempotency_key", key)
        put(self, "key_scope", _key_scope(key_scope))
        put(self, "priority", _priority(priority))
        queue = DEFAULT_QUEUE if queue is None else _text(queue, "queue", limit=QUEUE_MAX_CHARS)
        put(self, "queue", queue)
        meta = {} if meta is None else meta
        put(self, "meta", normalise(meta, "meta", max_bytes=META_MAX_BYTES, require=dict))
        put(self, "id", None if id is None else _id(id))

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of what "same data" compares, `run_at` aside.

        By JSON value: key order does not matter, 1 and true differ, 1 and 1.0 are equal. Stored
        with the job; another text hashed here would make every stored key conflict. `run_at` is
        compared on its own, because one that is left out is not compared: see `matches`.
        """
        compared: dict[str, Json] = {
            "type": self.type,
            "owner_id": self.owner_id,
            "project_id": self.project_id,
            "queue": self.queue,
            "target": self.target,
            "payload": self.payload,
            "priority": self.priority,
        }
        return hashlib.sha256(canonical(compared).encode()).hexdigest()

    @property
    def key_hash(self) -> str:
        """Return what is unique of the key: see `hash_key`."""
        return hash_key(self.idempotency_key)

    def matches(self, fingerprint: str, run_at: datetime) -> bool:
        """Say whether a stored job has the same data; a `run_at` left out is not compared."""
        return self.fingerprint == fingerprint and self.run_at in (None, run_at)

    def __repr__(self) -> str:
        # Never the payload: reprs end up in logs and error trackers.
        return f"<JobSpec {self.type!r} in {self.namespace!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobSpec):
            return NotImplemented
        mine, theirs = (self.namespace, self.run_at), (other.namespace, other.run_at)
        return mine == theirs and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash((self.namespace, self.run_at, self.fingerprint))

    def replace(self, /, **changes: Any) -> JobSpec:
        """Return a spec with some values changed, validated anew; what is left out stays.

        None is a value: JSON null for the payload, now for `run_at`, {} for `meta`, and refused
        for the rest. A default target stays what it was, also when the type changes.

        Raises InvalidJob, also for a name that cannot be replaced.
        """
        for name, value in changes.items():
            if name not in REPLACEABLE:
                raise _unknown_name(name)
            if value is None and name not in _NONE_IS_A_VALUE:
                raise InvalidJob(f"{name}: None is not accepted; leave it out to keep", field=name)
        values = {name: getattr(self, name) for name in REPLACEABLE} | changes
        return JobSpec(namespace=self.namespace, key_scope=self.key_scope, id=self.id, **values)


def hash_key(key: str) -> str:
    """Return the SHA-256 (hex) of a key: unique on every database, whatever it collates."""
    return hashlib.sha256(key.encode()).hexdigest()


def namespace_name(value: object) -> str:
    """Return the name of a namespace as given; raise InvalidJob where it cannot be one."""
    return _text(value, "namespace", limit=NAMESPACE_MAX_CHARS)


def _text(
    value: Any,
    field: str,
    *,
    limit: int = TEXT_MAX_CHARS,
    path: str = "",
    may_be_empty: bool = False,
) -> str:
    """Return the text as given, as a plain str; `path` is where it stands inside the field."""
    path = path or field
    kind = type(value)
    if kind is not str:
        if not issubclass(kind, str) or issubclass(kind, Enum):
            hint = "; pass its .value" if issubclass(kind, Enum) else ""
            raise _invalid(f"must be text (str), not {type_name(kind)}{hint}", field, path=path)
        value = str.__str__(value)
    text: str = value
    if len(text) > limit:
        problem = f"has {len(text):,} characters; at most {limit} are accepted"
        raise _invalid(problem, field, path=path)
    if not text.strip() and (text or not may_be_empty):
        raise _invalid(f"is blank; 1 to {limit} characters are accepted", field, path=path)
    if not (text.isascii() and text.isprintable()) and (bad := _CONTROL_OR_SURROGATE.search(text)):
        what = "a lone surrogate" if bad.group() >= "\ud800" else "a control character"
        problem = f"has {what} (U+{ord(bad.group()):04X}) at {bad.start()}; none is accepted"
        raise _invalid(problem, field, path=path)
    return text


def _target(value: Any) -> dict[str, Json]:
    target = normalise(value, "target", max_bytes=TARGET_MAX_BYTES, require=dict)
    for name in ("kind", "id"):
        if name not in target:
            problem = f'has no "{name}"; an object with text for "kind" and "id" is accepted'
            raise _invalid(problem, "target")
        _text(target[name], "target", path=f"target.{name}")
    return target


def moment(value: Any, field: str, *, column: str) -> datetime:
    """Return the instant in UTC, as a plain datetime; a naive one is in the current time zone.

    Then Django's own warning about naive values names `column`. Raises InvalidJob.
    """
    if not issubclass(type(value), datetime):
        problem = f"must be a datetime (or None), not {type_name(type(value))}"
        raise _invalid(problem, field)
    try:
        naive = timezone.is_naive(value)
        aware = timezone.make_aware(value) if naive else value  # in the current time zone
        instant = aware.astimezone(UTC)
    except OverflowError:
        raise _out_of_range(field) from None
    except Exception as error:  # foreign code: tzinfo
        problem = f"cannot be converted to UTC ({describe_exception(error, 200)})"
        raise _invalid(problem, field) from error
    if not RUN_AT_FIRST_YEAR <= instant.year <= RUN_AT_LAST_YEAR:
        raise _out_of_range(field)
    if naive and settings.USE_TZ:
        # Django's own words, so that a project's filters for them serve here too.
        message = (
            f"DateTimeField {column} received a naive datetime ({value}) "
            "while time zone support is active."
        )
        warnings.warn(message, RuntimeWarning, stacklevel=_level_of_caller())
    # A subclass (freezegun, pendulum) stays behind.
    return datetime.combine(instant.date(), instant.time(), tzinfo=UTC)


def _level_of_caller() -> int:
    """Return the stacklevel with which a warning of whoever calls this is one of the line of the
    project's that called us.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


def _out_of_range(field: str) -> InvalidJob:
    problem = f"must lie in the years {RUN_AT_FIRST_YEAR} to {RUN_AT_LAST_YEAR} (UTC)"
    return _invalid(problem, field)


def _key_scope(value: Any) -> KeyScope:
    if type(value) is not str or value not in ("ever", "live"):
        raise _invalid('must be "ever" or "live"', "key_scope")
    return "ever" if value == "ever" else "live"


def _priority(value: Any) -> int:
    kind = type(value)
    if not issubclass(kind, int) or issubclass(kind, (bool, Enum)):
        raise _invalid(f"must be an int, not {type_name(kind)}", "priority")
    number = int.__int__(value)
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        problem = f"must be an int from {PRIORITY_MIN} to {PRIORITY_MAX}"
        raise _invalid(problem, "priority")
    return number


def _id(value: Any) -> UUID:
    kind = type(value)
    if issubclass(kind, UUID):
        return UUID(int=value.int)
    # UUID() itself reads far more than that: braces, "urn:", underscores, other scripts' digits.
    if kind is str and _UUID.fullmatch(value):
        return UUID(value)
    found = "some other text" if kind is str else type_name(kind)
    raise _invalid(f"must be a UUID or its text in 32 hexadecimal digits, not {found}", "id")


def _unknown_name(name: str) -> InvalidJob:
    shown = storable_text(name, _NAME_IN_MESSAGE_CHARS)
    near, accepted = did_you_mean(name, REPLACEABLE), ", ".join(REPLACEABLE)
    return _invalid(f"cannot be replaced{near}; accepted: {accepted}", shown)


def _invalid(problem: str, field: str, *, path: str = "") -> InvalidJob:
    path = path or field
    return InvalidJob(f"{path}: {problem}", field=field, path=path)
