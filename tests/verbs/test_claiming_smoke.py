import uuid
import pytest
from django.db import connection
from django_durable_jobs import enqueue, cancel, requeue, replace_queued, enqueue_many, errors
from django_durable_jobs.claims import ClaimRequest, claim, load, settle
from django_durable_jobs.db import Outcome, transaction, statements_for
from django_durable_jobs.models import *

pytestmark = pytest.mark.django_db(transaction=True)


def test_smoke():
    a = enqueue("x", {"a": 1}, owner_id="a")
    b = enqueue("x", {"a": 1}, owner_id="b", idempotency_key="k")
    c = enqueue("x", {"a": 1}, owner_id="b", idempotency_key="k")
    assert c.pk == b.pk and not c.created and b.created
    with pytest.raises(errors.IdempotencyConflict):
        enqueue("x", {"a": 2}, owner_id="b", idempotency_key="k")
    with pytest.raises(errors.DuplicateJob):
        enqueue("x", {"a": 2}, id=a.pk)
    many = enqueue_many(
        [{"type": "x", "owner_id": f"o{i % 7}", "payload": [i]} for i in range(1200)]
    )
    assert len(many) == 1200
    req = ClaimRequest(
        namespace="default",
        worker=uuid.uuid4(),
        slots=5,
        types=frozenset({"x"}),
        lease=30,
        owner_cap=1,
    )
    with transaction("default") as conn:
        got = claim(conn, req)
    jobs = load(connection, got.takings)
    assert [j.job.owner_id for j in jobs] == ["a", "b", "o0", "o1", "o2"]
    assert Job.objects.filter(state="running").count() == 5
    with transaction("default") as conn:
        got2 = claim(conn, req)
    assert [j.job.owner_id for j in load(connection, got2.takings)] == ["o3", "o4", "o5", "o6"]
    outs = [
        Outcome(
            job_id=t.job_id,
            claim_id=t.claim_id,
            edge=e,
            result='{"a":1}' if e == "complete" else None,
            delay=5 if e == "retry" else 0,
            held_reason="retry" if e == "retry" else "",
        )
        for t, e in zip(got.takings, ["complete", "fail", "interrupt", "retry", "release"])
    ]
    with transaction("default") as conn:
        done = settle(conn, outs)
    assert done == {o.claim_id for o in outs}
    with transaction("default") as conn:
        assert settle(conn, outs) == set()
    print(
        list(
            Job.objects.filter(pk__in=[t.job_id for t in got.takings]).values_list(
                "state", "attempts", "held_reason", "finished_at", "claimable_at"
            )
        )
    )
    with pytest.raises(errors.NotQueued):
        cancel(got.takings[0].job_id)
    assert cancel(got.takings[3].job_id, "because").state == "cancelled"
    assert requeue(got.takings[3].job_id).state == "queued"
    j = replace_queued(got.takings[3].job_id, priority=7, payload=None)
    assert j.payload is None and QueueEntry.objects.get(pk=j.pk).rank == -7
    assert statements_for(connection).renew(
        [(t.job_id, t.claim_id) for t in got2.takings], lease=30
    ) == {t.claim_id for t in got2.takings}
