"""Taking over from workers that are gone."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

from django.db.models import F

from ..audit import audit
from ..claims import expire, interrupt_worker, tell_settled
from ..conf import settings
from ..db import current_clock, now_expression, transaction
from ..models import Worker
from ..states import InterruptionReason
from .identity import Identity, is_gone

logger = logging.getLogger(__name__)

_LIVE = (Worker.Status.RUNNING, Worker.Status.DRAINING)


def bury_the_gone(using: str, namespace: str, *, but: UUID) -> int:
    """Interrupt what workers held whose processes are proven to be gone from this host.

    Any worker does it, whoever comes first. ``but`` is the worker that does. Returns how many
    executions were interrupted.
    """
    rows = Worker.objects.using(using).filter(namespace=namespace, state__in=_LIVE)
    return sum(_bury(row, using) for row in rows.exclude(pk=but) if is_gone(_identity(row)))


def end_late_leases(using: str, namespace: str) -> int:
    """Interrupt what is held under leases that have run out; return how many, 50 at most.

    No more at once, so that whoever does it can renew its own in between.
    """
    requeue_unstarted = settings.RECOVER_UNSTARTED == "requeue"
    with transaction(using) as connection:
        expired = expire(connection, namespace, requeue_unstarted=requeue_unstarted)
    tell_settled(connection, expired)
    for outcome in expired:
        logger.warning("worker lost job=%s claim=%s", outcome.job_id, outcome.claim_id)
    _mark_lost(using, namespace)
    return len(expired)


def _bury(row: Worker, using: str) -> int:
    requeue_unstarted = settings.RECOVER_UNSTARTED == "requeue"
    with transaction(using) as connection:
        done = interrupt_worker(
            connection,
            row.pk,
            InterruptionReason.SERVER_RESTARTED,
            requeue_unstarted=requeue_unstarted,
        )
        # Others may find it gone as well.
        lost = Worker.objects.using(using).filter(pk=row.pk, state__in=_LIVE)
        first = lost.update(
            state=Worker.Status.LOST, stopped_at=now_expression(connection), active=0
        )
    tell_settled(connection, done)
    if first:
        _tell_lost(row.pk, InterruptionReason.SERVER_RESTARTED)
    logger.warning("worker gone worker=%s interrupted=%s", row, len(done))
    return len(done)


def _identity(row: Worker) -> Identity:
    return Identity(
        host=row.host,
        pid=row.pid,
        boot_id=row.boot_id,
        pid_namespace=row.pid_namespace,
        process_start=row.process_start,
    )


def _mark_lost(using: str, namespace: str) -> None:
    """Mark the workers lost that have shown no sign of life for two leases."""
    with transaction(using) as connection:
        limit = current_clock().now(connection) - timedelta(seconds=2 * settings.LEASE)
        silent = Worker.objects.using(using).filter(
            namespace=namespace, state__in=_LIVE, heartbeat_at__lt=limit
        )
        values = {"state": Worker.Status.LOST, "stopped_at": F("heartbeat_at"), "active": 0}
        ids = sorted(silent.values_list("pk", flat=True))
        lost = [id for id in ids if silent.filter(pk=id).update(**values)]
    for worker in lost:
        _tell_lost(worker, InterruptionReason.WORKER_LOST)


def _tell_lost(worker: UUID, reason: str) -> None:
    audit("worker.lost", outcome="failure", reason=reason, metadata={"worker": worker})
