"""What callers get wrong alike in every verb is refused alike: databases, names, ids."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_durable_jobs import (
    Scheduler,
    aenqueue,
    await_job,
    cancel,
    enqueue,
    enqueue_many,
    get_job,
    get_receipt,
    list_jobs,
    pause,
    replace_queued,
    requeue,
    resolve,
    resume,
    wait,
    wake,
)
from django_durable_jobs.errors import InvalidJob
from django_durable_jobs.models import Job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("alias", [5, "nosuch", "", "Default", b"default", ["default"], True])
def test_a_database_that_is_not_there_is_refused_by_name(alias: Any) -> None:
    id = uuid.uuid4()
    calls: list[Callable[[], object]] = [
        lambda: enqueue("x", {}, using=alias),
        lambda: enqueue_many([], using=alias),
        lambda: enqueue_many([{"type": "x"}], using=alias),
        lambda: cancel(id, using=alias),
        lambda: replace_queued(id, priority=1, using=alias),
        lambda: requeue(id, using=alias),
        lambda: resolve(id, "", using=alias),
        lambda: get_job(id, using=alias),
        lambda: get_receipt(id, using=alias),
        lambda: list_jobs(using=alias),
        lambda: wait(id, 1, using=alias),
        lambda: async_to_sync(await_job)(id, 1, using=alias),
        lambda: pause("default", using=alias),
        lambda: resume("default", using=alias),
        lambda: Scheduler(using=alias),
    ]
    wanted = f"using: {alias!r} is no alias out of DATABASES; accepted: default"
    for call in calls:
        with pytest.raises(InvalidJob) as caught:
            call()
        assert str(caught.value).startswith(wanted)
        assert caught.value.field == "using"
    wake(using=alias)  # never raises


def test_an_unknown_option_of_enqueue_is_refused_with_the_nearest_name() -> None:
    wrong: Any = enqueue
    with pytest.raises(TypeError, match=r"'prioritty' \(did you mean 'priority'\?\); acc"):
        wrong("x", prioritty=1)
    with pytest.raises(TypeError, match=r"Unknown option 'zzz'; accepted: type, payload, run_at"):
        async_to_sync(aenqueue)("x", zzz=1)  # type: ignore[call-arg]
    assert not Job.objects.exists()
