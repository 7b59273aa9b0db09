"""From the claim on: claim, start, settle, renew, record, expire. Called by the machinery.

Losing is an ordinary answer here: whoever no longer holds a claim gets False or is left out of
the result, and has changed nothing.
"""

from .holding import NEVER, free_ineligible, free_known, live_types, pause_after, put_off
from .reading import Claimed, load
from .repairing import Repair, repair
from .settling import (
    EXPIRED_AT_ONCE,
    Settlement,
    ends,
    expire,
    interrupt,
    interrupt_worker,
    settle,
    settle_apart,
    unconfirmed,
)
from .taking import ClaimRequest, ClaimResult, claim, peek
from .telling import NO_EXECUTION, settled, tell_settled

__all__ = [
    "EXPIRED_AT_ONCE",
    "NEVER",
    "NO_EXECUTION",
    "ClaimRequest",
    "ClaimResult",
    "Claimed",
    "Repair",
    "Settlement",
    "claim",
    "ends",
    "expire",
    "free_ineligible",
    "free_known",
    "interrupt",
    "interrupt_worker",
    "live_types",
    "load",
    "pause_after",
    "peek",
    "put_off",
    "repair",
    "settle",
    "settle_apart",
    "settled",
    "tell_settled",
    "unconfirmed",
]
