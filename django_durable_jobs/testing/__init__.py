"""For tests of projects that enqueue jobs: run what is due, move the time, assert.

    class InvoiceTests(TestCase):
        def test_an_invoice_is_sent(self):
            invoice = create_invoice()
            assert_enqueued(send_invoice, {"invoice_id": invoice.pk})
            run_due()

Everything happens in the calling thread, on its connection, inside the transaction of a
``TestCase`` or without one.
"""

from __future__ import annotations

from .asserting import assert_enqueued, assert_not_enqueued, captured_jobs
from .clocks import TestClock, clock
from .kit import DurableJobs
from .running import arun_due, arun_until, run_due, run_until
from .savepoints import BrokenTransaction

__all__ = [
    "BrokenTransaction",
    "DurableJobs",
    "TestClock",
    "arun_due",
    "arun_until",
    "assert_enqueued",
    "assert_not_enqueued",
    "captured_jobs",
    "clock",
    "run_due",
    "run_until",
]
