"""S2 schedule and register: what may be declared, and when."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_durable_jobs import checks, job, register, schedule
from django_durable_jobs.errors import (
    AlreadyStarted,
    DuplicateSchedule,
    InvalidRecurrence,
    InvalidSchedule,
)
from django_durable_jobs.registry import Declaration, handlers, schedules


def run() -> None: ...


def other() -> None: ...


def needs(invoice_id: int) -> None: ...


def check_ids() -> list[str]:
    return [str(each.id) for each in checks.check_schedules() if "'seed." in each.msg]


# schedule


@pytest.mark.parametrize("name", ["", None, 7, {"name": "seed.a"}])
def test_schedule_name_is_required(name: Any) -> None:
    with pytest.raises(InvalidSchedule, match=r"^A schedule's name holds .*; accepted: "):
        schedule(name, every=60, run=run)


@pytest.mark.parametrize("options", [{"every": 60, "run": other}, {"cron": "@daily", "run": run}])
def test_schedule_name_twice_is_refused(options: dict[str, Any]) -> None:
    first = schedule("seed.a", every=60, run=run)
    with pytest.raises(DuplicateSchedule, match=r"'seed\.a' is declared already"):
        schedule("seed.a", **options)
    assert schedules.get("seed.a") is first


def test_schedule_declared_again_the_same_is_one() -> None:
    """changed: the very same again, as by a module that is imported twice, is no second one."""
    assert schedule("seed.a", every=60, run=run) == schedule("seed.a", every=60, run=run)


def test_schedule_after_start_is_refused() -> None:
    schedules.take()
    with pytest.raises(AlreadyStarted, match=r"'seed\.a' was declared after a worker"):
        schedule("seed.a", every=60, run=run)
    assert schedules.get("seed.a") is None


def test_schedule_after_stop_is_accepted() -> None:
    schedules.take()
    schedules.release()
    schedule("seed.a", every=60, run=run)


@pytest.mark.parametrize("when", [{}, {"cron": "@daily", "every": 60}])
def test_schedule_has_exactly_one_of_cron_and_every(when: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule, match=r"cron .* every; accepted: exactly one of them"):
        schedule("seed.a", run=run, **when)


@pytest.mark.parametrize("every", [0.999, 0, -5, float("nan"), float("inf"), True])
def test_schedule_every_is_at_least_a_second(every: Any) -> None:
    with pytest.raises(InvalidRecurrence, match="interval") as caught:
        schedule("seed.a", every=every, run=run)
    assert caught.value.code == "invalid-interval"
    schedule("seed.a", every=1, run=run)


@pytest.mark.parametrize("wrong", [{"every": "60"}, {"cron": 60}])
def test_schedule_of_the_wrong_type_is_refused_by_name(wrong: dict[str, Any]) -> None:
    """changed: the seed takes such a value for none."""
    with pytest.raises(InvalidRecurrence):
        schedule("seed.a", run=run, **wrong)


def test_schedule_has_not_both_job_and_run() -> None:
    with pytest.raises(InvalidSchedule, match="has both job and run; accepted: one of them"):
        schedule("seed.a", every=60, job="seed.job", run=run)  # type: ignore[call-overload]


def test_schedule_with_neither_job_nor_run_is_an_error_of_the_check() -> None:
    """changed: it is a decorator then; that it was put on nothing, the system check says."""
    decorate = schedule("seed.a", every=60)
    assert check_ids() == ["durable_jobs.E030"]
    decorate(run)
    assert check_ids() == []


def test_schedule_job_must_be_registered() -> None:
    """changed: handlers may be declared after the schedule, so the system check tells."""
    schedule("seed.a", every=60, job="seed.job")
    assert check_ids() == ["durable_jobs.E031"]
    job("seed.job")(run)
    assert check_ids() == []


def test_schedule_job_gets_its_payload() -> None:
    assert schedule("seed.a", every=60, job="seed.job").payload == {}
    assert schedule("seed.b", every=60, job="seed.job", payload={"n": 1}).payload == {"n": 1}


def test_schedule_payload_goes_with_job() -> None:
    """changed: the seed ignores it beside run."""
    with pytest.raises(InvalidSchedule, match="payload goes with a declared job"):
        schedule("seed.a", every=60, run=run, payload={})  # type: ignore[call-overload]


def test_schedule_enqueue_options_are_arguments() -> None:
    """changed: each by its name, judged at once."""
    made = schedule("seed.a", every=60, job="seed.job", owner_id="acme", priority=5, queue="mail")
    assert (made.owner_id, made.priority, made.queue) == ("acme", 5, "mail")
    with pytest.raises(InvalidSchedule, match="priority: must be an int from -100 to 100"):
        schedule("seed.b", every=60, job="seed.job", priority=101)


def test_schedule_run_becomes_a_job_of_its_own_type() -> None:
    """changed: the seed calls the function in the leader's process; here each fire is a job."""
    made = schedule("seed.a", every=60, run=run)
    assert (made.type, made.via_job) == ("schedule:seed.a", False)
    handler = handlers.get("schedule:seed.a")
    assert handler is not None
    assert handler.function is run


@pytest.mark.parametrize("wrong", [7, "run", needs])
def test_schedule_run_is_a_function_without_arguments(wrong: Any) -> None:
    with pytest.raises(InvalidSchedule, match=r"[Aa]ccepted: a function"):
        schedule("seed.a", every=60, run=wrong)


def test_schedule_unknown_time_zone_is_refused() -> None:
    with pytest.raises(InvalidRecurrence, match="The time zone is 'Mars/Base'") as caught:
        schedule("seed.a", cron="@daily", timezone="Mars/Base", run=run)
    assert caught.value.code == "invalid-timezone"


def test_schedule_blank_time_zone_is_refused() -> None:
    """changed: the seed takes it for none."""
    with pytest.raises(InvalidRecurrence, match="time zone"):
        schedule("seed.a", cron="@daily", timezone="", run=run)


def test_schedule_baseline_goes_with_every() -> None:
    """changed: the seed ignores it beside cron."""
    with pytest.raises(InvalidSchedule, match="baseline, which goes with every"):
        schedule("seed.a", cron="@daily", baseline="02:30", run=run)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"cron": "@daily", "timezone": "UTC"}, "cron", "cron 0 0 * * * UTC"),
        ({"cron": " 0  2 * * *"}, "cron", "cron 0 2 * * * Asia/Tokyo"),
        ({"every": 300}, "every", "every 300 s"),
        (
            {"every": timedelta(minutes=5), "baseline": "02:30", "timezone": "UTC"},
            "every",
            "every 300 s from 02:30 UTC",
        ),
    ],
)
def test_schedule_returns_what_was_declared(
    options: dict[str, Any], kind: str, words: str, settings: Any
) -> None:
    """changed: seconds instead of milliseconds, and the project's time zone is named too."""
    settings.TIME_ZONE = "Asia/Tokyo"
    made = schedule("seed.a", run=run, **options)
    assert isinstance(made, Declaration)
    assert (made.name, made.kind, made.when) == ("seed.a", kind, words)
    assert made.timezone == options.get("timezone", "Asia/Tokyo")


# register


@pytest.mark.parametrize("name", ["", None, 7])
def test_register_name_must_be_text(name: Any) -> None:
    with pytest.raises(InvalidSchedule, match=r"^A schedule's name holds "):
        register(name, 60, run)


@pytest.mark.parametrize("interval", [0.999, 0, float("nan"), float("inf"), "60"])
def test_register_interval_is_at_least_a_second(interval: Any) -> None:
    with pytest.raises(InvalidRecurrence, match="interval"):
        register("seed.a", interval, run)


@pytest.mark.parametrize("function", [None, 7, "run"])
def test_register_needs_a_function(function: Any) -> None:
    with pytest.raises(InvalidSchedule, match="accepted: a function"):
        register("seed.a", 60, function)


def test_register_is_schedule_with_every_and_run() -> None:
    """changed: it returns what was declared; there is no scheduler to chain calls on."""
    made = register("seed.a", timedelta(minutes=5), run)
    assert made == schedule("seed.a", every=300, run=run)
