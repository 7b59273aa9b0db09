"""An occurrence: one due time of a record under one schedule identity and epoch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from ..jobspec import hash_key
from ..models import LoopRecord
from ..models.loop import whole_milliseconds
from .records import PREFIX, root_key, root_of, type_of

TARGET = "loop-record"
LOCAL_USER = "local-user"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Return an instant as whole microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def stamp(moment: datetime) -> str:
    """Return an instant as payloads and receipts have it: ISO 8601 in UTC, with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One due time of a record (the seed's identity and spec)."""

    project: str
    identity: UUID
    epoch: int
    due: datetime

    @property
    def digest(self) -> str:
        """Return what tells it from every other occurrence, as 64 hexadecimal digits."""
        parts = (self.project, str(self.identity), str(self.epoch), str(microseconds(self.due)))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def key(self) -> str:
        """Return the idempotency key of its job."""
        return key_of(self.digest)


def key_of(digest: str) -> str:
    return PREFIX + digest


def key_hash_of(digest: str) -> str:
    """Return what the job of an occurrence is found by."""
    return hash_key(key_of(digest))


def occurrence_of(record: LoopRecord) -> Occurrence | None:
    """Return the occurrence that the record points at, None where it has no next time."""
    if record.next_run_at is None:
        return None
    return Occurrence(
        record.get_project_id(),
        record.schedule_identity,
        record.schedule_epoch,
        whole_milliseconds(record.next_run_at),
    )


def target_of(record: LoopRecord) -> str:
    """Return the record's key as the targets of its jobs have it."""
    return str(root_key(record, root_of(type(record))))


def job_of(record: LoopRecord, occurrence: Occurrence, owner: str) -> dict[str, Any]:
    """Return the job of an occurrence, in enqueue's names."""
    key, options = target_of(record), root_of(type(record)).occurrence_options
    return {
        **{name: value for name, value in options.items() if name != "timeout"},
        "type": type_of(type(record)),
        "idempotency_key": occurrence.key,
        "owner_id": owner,
        "project_id": occurrence.project,
        "target": {"kind": TARGET, "id": key},
        "payload": {
            "record_id": key,
            "occurrence_at": stamp(occurrence.due),
            "occurrence_key": occurrence.key,
            "schedule_identity": str(occurrence.identity),
            "schedule_epoch": occurrence.epoch,
            "record_revision": microseconds(record.updated_at),
        },
        "run_at": occurrence.due,
    }


def rule_digest(record: LoopRecord) -> str:
    """Return what tells the record's recurrence from another one, as 64 hexadecimal digits."""
    cron, zone = record.cron.strip(), ""
    if cron or record.baseline is not None:  # an interval alone has the same times everywhere
        zone = record.timezone or timezone.get_default_timezone_name()
    parts = (cron, str(record.every), str(record.baseline), zone)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
