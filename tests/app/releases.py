"""Two releases of one project's jobs, the newer with a new type and without an old one.

``DDJ_RELEASE`` says which one a worker has; tests/app/apps.py imports this only where it says so.
"""

from __future__ import annotations

import os
import time

from django_durable_jobs import job
from django_durable_jobs.worker.context import JobContext
from tests.app.jobs import recorded

VARIABLE = "DDJ_RELEASE"
BOTH, REMOVED, ADDED = "deployed.both", "deployed.removed", "deployed.added"
TYPES = {"old": (BOTH, REMOVED), "new": (BOTH, ADDED)}


def deployed(context: JobContext, seconds: float = 0.0) -> None:
    """Take ``seconds``, and tell the ledger which release it was."""
    with recorded(context, os.environ[VARIABLE]):
        time.sleep(seconds)


for _type in TYPES[os.environ[VARIABLE]]:
    job(_type, takes_context=True)(deployed)
