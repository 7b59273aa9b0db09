"""Entering and leaving the namespace: the worker's row, recovery at the start, the types known."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from .. import registry
from ..audit import audit
from ..claims import free_known
from ..db import current_clock, now_expression, transaction
from ..models import Worker
from .identity import this_process
from .recovery import bury_the_gone


class Enrolment:
    """This worker's row in the namespace."""

    def __init__(
        self,
        worker: UUID,
        namespace: str,
        using: str,
        *,
        slots: int,
        queues: tuple[str, ...] | None,
        excluded: frozenset[str],
    ) -> None:
        self.worker = worker
        self.namespace = namespace
        self.using = using
        self.slots = slots
        self.queues = queues
        self.excluded = excluded
        self.changed = False  # the handlers, since the row was written
        self.leads = True  # whether it may fire the schedules that it knows
        self._enrolled = False
        self.stuck = 0  # how many handlers do not end, told when it leaves

    def enrol(self) -> None:
        """Register the worker, then recover what workers left behind whose processes are gone."""
        with transaction(self.using) as connection:
            self._insert(connection)
        with transaction(self.using) as connection:
            free_known(connection, self.namespace, registry.types())
        # By proof only: whose lease has run out may be about to renew it, after an outage.
        bury_the_gone(self.using, self.namespace, but=self.worker)
        if not self._enrolled:
            self.tell("scheduler.start")
        self._enrolled = True

    def tell_types(self) -> None:
        """Write which types this worker knows now, and free what waited for one of them."""
        self.changed = False
        types = sorted(registry.types())
        try:
            with transaction(self.using):
                Worker.objects.using(self.using).filter(pk=self.worker).update(types=types)
            with transaction(self.using) as connection:
                free_known(connection, self.namespace, types)
        except BaseException:
            self.changed = True
            raise

    def leave(self, connection: BaseDatabaseWrapper) -> None:
        """Write that the worker has stopped, inside the caller's transaction."""
        Worker.objects.using(self.using).filter(pk=self.worker).update(
            state=Worker.Status.STOPPED,
            stopped_at=now_expression(connection),
            active=0,
            stuck=self.stuck,
        )

    def tell(self, action: str) -> None:
        """Tell the audit trail of this worker."""
        count = len(registry.schedules.all()) if self.leads else 0
        audit(action, metadata={"count": count, "worker": self.worker})

    def _insert(self, connection: BaseDatabaseWrapper) -> None:
        now = current_clock().now(connection)
        me = this_process()
        # Saved, not created: enrolling again after trouble half-way finds the row there.
        worker = Worker(
            id=self.worker,
            namespace=self.namespace,
            host=me.host,
            pid=me.pid,
            boot_id=me.boot_id,
            pid_namespace=me.pid_namespace,
            process_start=me.process_start,
            started_at=now,
            heartbeat_at=now,
            queues=None if self.queues is None else list(self.queues),
            excluded_queues=sorted(self.excluded),
            types=sorted(registry.types()),
            concurrency=self.slots,
            version=_version(),
        )
        worker.save(using=self.using)


def _version() -> str:
    try:
        return version("django-durable-jobs")[:32]
    except PackageNotFoundError:
        return ""
