"""Loop records: their jobs are kept in step with them, and each due time runs as a job."""

from .dispatching import can_run_of, handler_of
from .keeping import pointed_at
from .reconciling import Reconciler
from .records import PREFIX, loop_models, record_of, root_key, root_of, type_of
from .syncing import (
    async_loops,
    jobs_ended,
    records_written,
    refuse_stale,
    sync_loops,
)

__all__ = [
    "PREFIX",
    "Reconciler",
    "async_loops",
    "can_run_of",
    "handler_of",
    "jobs_ended",
    "loop_models",
    "pointed_at",
    "record_of",
    "records_written",
    "refuse_stale",
    "root_key",
    "root_of",
    "sync_loops",
    "type_of",
]
