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
from django_durable_jobs.errors import InvalidJob, JobDoesNotExist
from django_durable_jobs.models import Job

pytestmark = pytest.mark.django_db(transaction=True)

ID = uuid.UUID("01890a5d-ac96-774b-bcce-b302099a8057")


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


class Odd:
    def __repr__(self) -> str:
        raise LookupError

    __str__ = __repr__


@pytest.mark.parametrize(
    ("id", "told"),
    [
        (ID, str(ID)),
        (str(ID), str(ID)),
        ("", "''"),
        ("7", "'7'"),
        ("\x00", r"'\x00'"),
        ("\ud800", r"'\ud800'"),
        (None, "None"),
        (b"x", "b'x'"),
        ("x" * 10**6, "'xxxxxxxx"),
        (b"x" * 10**6, "b'xxxxxxxx"),
        (10**5_000, "a value of type int"),
        (Odd(), "Odd"),
    ],
    ids=lambda value: "",
)
def test_what_is_no_id_is_shown_and_cut(id: Any, told: str) -> None:
    for call in (requeue, lambda id: resolve(id, ""), lambda id: wait(id, 1)):
        with pytest.raises(JobDoesNotExist) as caught:
            call(id)
        assert told in str(caught.value)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 150
        assert len(str(caught.value.job_id)) <= 100
    assert cancel(id) is get_job(id) is get_receipt(id) is replace_queued(id, priority=1) is None


@pytest.mark.parametrize("name", ["id", "self", "namespace", "key_scope", "job_id"])
def test_what_cannot_be_replaced_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidJob, match=f"^{name}: cannot be replaced") as caught:
        replace_queued(enqueue("x"), **{name: ID})
    assert caught.value.field == name
