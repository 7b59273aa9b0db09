"""The database goes away in every way there is: no worker dies of it, no job is lost or run twice.

DDJ_CHAOS_SECONDS makes it last longer, DDJ_CHAOS_SEED plays a printed seed again.
"""

from __future__ import annotations

import os
import random

import pytest
from django.db import connection

from tests.chaos.outage import SECONDS, SERVERS, TRIAL, Outage
from tests.chaos.proxy import Proxy
from tests.databases import default_database
from tests.processes.harness import Workers
from tests.servers import running

SEED = int(os.environ.get("DDJ_CHAOS_SEED") or random.randrange(1_000_000))

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(2 * SECONDS + 600),
    pytest.mark.skipif("connection.vendor == 'sqlite'", reason="a file does not go away"),
]


def test_no_promise_is_broken_while_the_database_comes_and_goes(workers: Workers) -> None:
    kind = SERVERS[connection.vendor]
    print(f"\noutages of {connection.vendor}, seed {SEED}, {SECONDS:g} s")
    with (
        running(kind, Outage._most_connections()) as server,
        Proxy(server.socket) as proxy,
        default_database(server.settings),
    ):
        outage = Outage(workers, server, proxy, SEED)
        outage.last()
    told = ", ".join(f"{n} {name}" for name, n in sorted(outage.witnesses.items()))
    print(f"  witnessed: {told}")
    print(f"  violations: {len(outage.violations)}")
    for violation in outage.violations:
        print(f"    {violation}")
    assert outage.violations == [], f"seed {SEED}"
    if TRIAL:
        faults = [fault.__name__ for fault in (*outage.faults, outage.long_refused)]
        assert [name for name in faults if not outage.witnesses[name]] == []
    assert outage.witnesses["started"] > (5 if TRIAL else 2) * SECONDS, "hardly anything ran"
