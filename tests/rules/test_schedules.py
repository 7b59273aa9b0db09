"""How schedules are declared, and what this process knows of them."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from types import FunctionType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import override_settings
from django.utils import timezone

import django_durable_jobs
from django_durable_jobs.errors import (
    AlreadyStarted,
    DuplicateHandler,
    DuplicateSchedule,
    InvalidRecurrence,
    InvalidSchedule,
)
from django_durable_jobs.recurrence import Cron, Every
from django_durable_jobs.registry import (
    ContextJobFunction,
    Declaration,
    JobFunction,
    ScheduleStore,
    handlers,
    job,
    register,
    register_handler,
    schedule,
    schedules,
)
from django_durable_jobs.registry.declaration import read_rule

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _own_registries() -> Iterator[None]:
    with handlers.preserved(), schedules.preserved():
        yield


def clean() -> str:
    return "cleaned"


def other() -> None: ...


def send(invoice_id: int = 0) -> None: ...


def needs(invoice_id: int) -> None: ...


def with_context(context: object, copies: int = 1) -> tuple[object, int]:
    return context, copies


def generator() -> Iterator[int]:
    yield 1


def twin(function: Any) -> FunctionType:
    """Return another function of the same name, as a reload of its module makes."""
    made = FunctionType(function.__code__, function.__globals__, function.__name__)
    made.__qualname__ = function.__qualname__
    return made


def declared(**options: Any) -> Declaration:
    """Declare a schedule named "name", by default one that runs `clean` every minute."""
    if not options.keys() & {"cron", "every"}:
        options["every"] = 60
    if not options.keys() & {"job", "run"}:
        options["run"] = clean
    made = schedule("name", **options)
    assert isinstance(made, Declaration)
    return made


def here() -> list[str]:
    """Return the names of the schedules that tests declared."""
    return [each.name for each in schedules.all() if each.name in ("name", "b", "c")]


# The three ways


def test_a_decorated_function_becomes_a_job_of_the_schedule() -> None:
    made = schedule("name", cron="0 2 * * *", timezone="Europe/Vienna")(clean)
    assert made() == "cleaned"
    assert made.type == "schedule:name"
    handler = handlers.get("schedule:name")
    assert handler is not None
    assert handler.function is clean
    found = schedules.get("name")
    assert found is not None
    assert (found.type, found.via_job, found.payload) == ("schedule:name", False, {})
    assert (found.kind, found.timezone) == ("cron", "Europe/Vienna")
    assert found.recurrence == Cron("0 2 * * *", "Europe/Vienna")


def test_a_decorated_job_stays_the_job_it_is() -> None:
    inner = job("invoice.send", max_attempts=3)(send)
    made = schedule("name", every=60, payload={"invoice_id": 7})(inner)
    assert made is inner
    found = schedules.get("name")
    assert found is not None
    assert (found.type, found.via_job, found.payload) == ("invoice.send", True, {"invoice_id": 7})
    assert handlers.get("schedule:name") is None


def test_a_job_is_scheduled_by_its_type_or_its_function() -> None:
    by_type = declared(job="invoice.send", payload={"invoice_id": 7})
    function = job("invoice.print")(send)
    by_function = schedule("b", every=60, job=function)
    by_handler = schedule("c", every=60, job=function.handler)
    assert [each.type for each in (by_type, by_function, by_handler)] == [
        *("invoice.send", "invoice.print", "invoice.print")
    ]
    assert by_type.via_job
    assert by_function.payload == {}
    assert schedules.get("name") is by_type


def test_a_function_is_scheduled_by_run() -> None:
    made = declared(run=clean)
    assert (made.type, made.via_job) == ("schedule:name", False)
    handler = handlers.get("schedule:name")
    assert handler is not None
    assert handler.function is clean


def test_register_is_shorthand_for_an_interval_and_a_function() -> None:
    made = register("name", timedelta(minutes=5), clean)
    assert made == schedules.get("name")
    assert made.recurrence == Every(timedelta(minutes=5))
    assert register("b", 300, clean).recurrence == made.recurrence


def test_a_function_may_take_the_context() -> None:
    made = schedule("name", every=60, takes_context=True)(with_context)
    assert isinstance(made, ContextJobFunction)
    assert made("context") == ("context", 1)
    schedule("b", every=60, run=with_context, takes_context=True)
    for type in ("schedule:name", "schedule:b"):
        handler = handlers.get(type)
        assert handler is not None
        assert handler.takes_context


def test_a_function_may_be_async() -> None:
    async def main() -> str:
        return "done"

    assert asyncio.run(schedule("name", every=60)(main)()) == "done"
    handler = handlers.get("schedule:name")
    assert handler is not None
    assert handler.is_async


def test_one_function_may_have_two_schedules() -> None:
    made = schedule("name", cron="0 6 * * *")(schedule("b", cron="0 18 * * *")(clean))
    assert here() == ["b", "name"]
    assert made() == "cleaned"


def test_the_defaults() -> None:
    made = declared(job="invoice.send")
    assert made == Declaration(name="name", recurrence=Every(60), type="invoice.send", via_job=True)
    assert (made.overlap, made.catch_up, made.jitter) == ("skip", "none", 0.0)
    assert (made.owner_id, made.project_id, made.payload) == ("", "default", {})
    for name in ("target", "priority", "queue", "meta", "start", "end", "max_run"):
        assert getattr(made, name) is None
    assert (made.catch_up_window, made.pause_after_failures) == (None, None)


def test_the_options_are_on_the_declaration() -> None:
    made = declared(
        every=timedelta(minutes=5),
        baseline=time(2, 30),
        timezone="Asia/Tokyo",
        job="invoice.send",
        payload={"price": Decimal("1.5")},
        owner_id="acme",
        project_id="shop",
        target={"kind": "invoice", "id": "7"},
        priority=3,
        queue="mail",
        meta={"label": "x"},
        overlap="queue",
        catch_up="last",
        catch_up_window=timedelta(hours=2),
        jitter=timedelta(seconds=30),
        start=NEW_YEAR,
        end=NEW_YEAR,
        max_run=90,
        pause_after_failures=3,
    )
    assert made == Declaration(
        name="name",
        recurrence=Every(300, baseline="02:30", timezone="Asia/Tokyo"),
        type="invoice.send",
        via_job=True,
        payload={"price": Decimal("1.5")},
        owner_id="acme",
        project_id="shop",
        target={"kind": "invoice", "id": "7"},
        priority=3,
        queue="mail",
        meta={"label": "x"},
        overlap="queue",
        catch_up="last",
        catch_up_window=7200.0,
        jitter=30.0,
        start=NEW_YEAR,
        end=NEW_YEAR,
        max_run=90.0,
        pause_after_failures=3,
    )
    assert made.when == "every 300 s from 02:30 Asia/Tokyo"
    assert hash(made) == hash(schedules.get("name"))


def test_what_was_given_may_change_afterwards() -> None:
    payload, meta, target = {"ids": [1]}, {"label": "x"}, {"kind": "invoice", "id": "7"}
    made = declared(job="invoice.send", payload=payload, meta=meta, target=target)
    payload["ids"].append(2)
    meta["label"] = target["id"] = "y"
    assert (made.payload, made.meta) == ({"ids": [1]}, {"label": "x"})
    assert made.target == {"kind": "invoice", "id": "7"}


def test_a_payload_of_none_stays_none() -> None:
    assert declared(job="invoice.send", payload=None).payload is None


def test_no_payload_is_shown_in_logs() -> None:
    made = declared(job="x", payload="geheim", meta={"a": "geheim"})
    assert "geheim" not in repr(made)


# What is refused

NAME = "A schedule's name holds "
EITHER = r"accepted: exactly one of them\."


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", NAME + "''; accepted: 1 to 200 characters, not blank"),
        (" ", NAME + "' '"),
        ("n" * 201, "accepted: 1 to 200 characters"),
        ("a\x00b", "no control characters"),
        (None, NAME + "None; accepted: text"),
        (7, NAME + "7; accepted: text"),
        (clean, NAME + ".*clean.*; accepted: text"),
    ],
)
def test_a_name_is_required(name: Any, words: str) -> None:
    with pytest.raises(InvalidSchedule, match=words):
        schedule(name, every=60, run=clean)
    with pytest.raises(InvalidSchedule, match=words):
        register(name, 60, clean)


def test_a_name_may_have_200_characters() -> None:
    assert schedule("ü" * 200, every=60, run=clean).type == "schedule:" + "ü" * 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": None}, "has neither cron nor every; " + EITHER),
        ({"cron": "* * * * *", "every": 60}, "has both cron and every; " + EITHER),
        ({"cron": "* * * * *", "baseline": "02:30"}, "baseline, which goes with every"),
        ({"job": "x", "run": clean}, "has both job and run; accepted: one of them"),
        ({"job": clean}, r"job is <function clean.*; accepted: a type, or .*run= takes plain"),
        ({"job": 7}, "job is 7; accepted: a type, or a function declared by @job"),
        ({"job": ""}, "job: is blank; 1 to 256 characters"),
        ({"job": "x", "takes_context": True}, "takes_context goes with run="),
        ({"takes_context": 1}, "takes_context is 1; accepted: True or False"),
        ({"run": 7}, "The handler is 7; accepted: a function"),
        ({"run": generator}, "generator; accepted: a function that does its work"),
        ({"run": dict}, "dict is a class; accepted: a function"),
        ({"run": needs}, "needs 'invoice_id'.*Accepted: a function without arguments"),
        ({"run": clean, "takes_context": True}, "it needs a first parameter"),
        ({"jitter": -1}, "jitter is -1; accepted: a timedelta or seconds, at least 0"),
        ({"jitter": 60}, r"is 60 s; accepted: less than the shortest time .* ticks \(60 s\)"),
        ({"cron": "*/7 * * * *", "jitter": 240}, r"accepted: less than .* \(240 s\)"),
        ({"every": 25_200, "baseline": "02:30", "jitter": 10_800}, r"\(10800 s\)"),
        ({"jitter": None}, "jitter is None; accepted: a timedelta or seconds, 0 for none"),
        ({"jitter": float("nan")}, "jitter is nan"),
        ({"jitter": True}, "jitter is True"),
        ({"cron": "* * * * *", "jitter": timedelta(days=400)}, "at most a year"),
        ({"overlap": "wait"}, 'overlap is \'wait\'; accepted: "skip", "queue", "allow"'),
        ({"overlap": None}, "overlap is None"),
        ({"catch_up": True}, 'catch_up is True; accepted: "none", "last", "all"'),
        ({"catch_up_window": -1}, "catch_up_window is -1; accepted: a timedelta or seconds"),
        ({"max_run": 0}, "max_run is 0; accepted: a timedelta or seconds, at least 0.01"),
        ({"max_run": "5"}, "max_run is '5'"),
        ({"max_run": 10**400}, "max_run is "),
        ({"pause_after_failures": 0}, "pause_after_failures is 0; accepted: a whole number"),
        ({"pause_after_failures": 2.0}, "pause_after_failures is 2.0"),
        ({"pause_after_failures": True}, "pause_after_failures is True"),
        ({"start": "2026-01-01"}, "start: must be a datetime"),
        ({"end": datetime(1969, 1, 1, tzinfo=UTC)}, "end: must lie in the years 1970 to 9998"),
        (
            {"start": NEW_YEAR, "end": NEW_YEAR - timedelta(seconds=1)},
            "end .2025-12-31 23:59:59.*is before start .2026-01-01.*; accepted: start or later",
        ),
        ({"job": "x", "owner_id": 7}, "owner_id: must be text"),
        ({"job": "x", "owner_id": None}, "owner_id: must be text"),
        ({"job": "x", "project_id": ""}, "project_id: is blank"),
        ({"job": "x", "target": {"kind": "a"}}, 'target: has no "id"'),
        ({"job": "x", "priority": 101}, "priority: must be an int from -100 to 100"),
        ({"job": "x", "queue": "q" * 65}, "queue: has 65 characters"),
        ({"job": "x", "meta": {"a": {1}}}, "meta.a: set is not JSON"),
        ({"job": "x", "payload": threading.Lock()}, "payload cannot be copied"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_declared(
    options: dict[str, Any], words: str
) -> None:
    options = {"every": None if "cron" in options else 60, **options}
    if "job" not in options:
        options = {"run": clean, **options}
    with pytest.raises(InvalidSchedule, match=words) as caught:
        schedule("name", **options)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith("The schedule 'name': ")
    assert here() == []
    assert handlers.get("schedule:name") is None


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"cron": "61 * * * *"}, "invalid-cron"),
        ({"cron": ""}, "invalid-cron"),
        ({"cron": 5}, "invalid-cron"),
        ({"cron": "0 0 31 2 *"}, "cron-no-fire"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "invalid-timezone"),
        ({"cron": "* * * * *", "timezone": ""}, "invalid-timezone"),
        ({"every": 0.5}, "invalid-interval"),
        ({"every": "60"}, "invalid-interval"),
        ({"every": 60, "baseline": "25:00"}, "invalid-baseline"),
    ],
)
def test_a_rule_that_is_none_is_refused_with_its_code(options: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidRecurrence, match=r"^The schedule 'name': ") as caught:
        schedule("name", run=clean, **options)
    assert caught.value.code == code
    with pytest.raises(InvalidRecurrence):
        schedule("name", **options)  # as a decorator, before it is put on anything
    assert (here(), schedules.unfinished()) == ([], [])


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"'evry' \(did you mean 'every'\?\); accepted: job, run"):
        schedule("name", evry=60, run=clean)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "option",
    [
        *({"payload": {}}, {"owner_id": ""}, {"project_id": "default"}, {"target": None}),
        *({"priority": None}, {"queue": None}, {"meta": None}),
    ],
)
def test_the_options_of_jobs_go_with_declared_jobs_only(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(InvalidSchedule, match=f"{name} goes with a declared job; accepted: job="):
        declared(run=clean, **option)
    with pytest.raises(InvalidSchedule, match=f"{name} goes with a declared job"):
        schedule("name", every=60, **option)(clean)
    declared(job="x", **option)


def test_a_declared_job_is_scheduled_as_a_job() -> None:
    function = job("invoice.send")(send)
    with pytest.raises(InvalidSchedule, match=r"accepted: a plain function\. Pass it as job="):
        declared(run=function)
    with pytest.raises(InvalidSchedule, match="Pass it as job="):
        register("name", 60, function)
    with pytest.raises(InvalidSchedule, match="takes_context goes with run="):
        schedule("name", every=60, takes_context=True)(function)


def test_register_needs_interval_and_function() -> None:
    with pytest.raises(InvalidSchedule, match="neither cron nor every"):
        register("name", None, clean)  # type: ignore[arg-type]
    with pytest.raises(InvalidSchedule, match="The handler is None; accepted: a function"):
        register("name", 60, None)  # type: ignore[arg-type]


# Bounds


def test_bounds_are_stored_in_utc() -> None:
    vienna = timezone.get_fixed_timezone(60)
    made = declared(start=datetime(2026, 1, 1, 1, tzinfo=vienna), end=NEW_YEAR)
    assert (made.start, made.end) == (NEW_YEAR, NEW_YEAR)
    assert made.start is not None
    assert made.start.tzinfo is UTC


@override_settings(USE_TZ=True)
def test_naive_bounds_are_in_the_current_time_zone_and_warned_of() -> None:
    with timezone.override("Europe/Vienna"), pytest.warns(RuntimeWarning) as warned:
        made = declared(start=datetime(2026, 1, 1, 1))
    assert made.start == NEW_YEAR
    words = "DateTimeField Schedule.start received a naive datetime (2026-01-01 01:00:00)"
    assert [words in str(each.message) for each in warned] == [True]


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Vienna")
def test_naive_bounds_need_no_warning_without_time_zone_support() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert declared(start=datetime(2026, 1, 1, 1)).start == NEW_YEAR


@pytest.mark.parametrize(
    "options",
    [
        {"cron": "*/7 * * * *", "jitter": 239},
        {"cron": "0 3 * * mon", "jitter": timedelta(days=6)},
        {"every": 60, "jitter": 59.9},
        {"cron": "0 3 * * mon", "timezone": ZoneInfo("Asia/Tokyo")},
    ],
)
def test_what_makes_sense_is_taken(options: dict[str, Any]) -> None:
    made = declared(job="x", **options)
    assert timedelta(seconds=made.jitter) < made.recurrence.shortest_step
    assert made.timezone == ("Asia/Tokyo" if "timezone" in options else "Europe/Vienna")


# What is seen as an edit


@pytest.mark.parametrize(
    "change",
    [
        {"every": 61},
        {"every": 60.5},
        {"every": None, "cron": "* * * * *"},
        {"baseline": "02:30"},
        {"start": NEW_YEAR},
        {"end": NEW_YEAR},
    ],
)
def test_what_moves_ticks_changes_the_rule(change: dict[str, Any]) -> None:
    assert _rule(every=60) != _rule(**{"every": 60, **change})


def test_bounds_are_told_apart() -> None:
    assert _rule(every=60, start=NEW_YEAR) != _rule(every=60, end=NEW_YEAR)


def test_what_moves_no_tick_leaves_the_rule() -> None:
    options = {
        **{"payload": {"a": 1}, "overlap": "allow", "catch_up": "all", "jitter": 5, "max_run": 5},
        **{"owner_id": "x", "priority": 5, "catch_up_window": 5, "pause_after_failures": 5},
    }
    before = _rule(every=60)
    assert before == _rule(every=60.0, job="other", **options)
    assert before == _rule(every=timedelta(minutes=1), timezone="Asia/Tokyo")
    assert _rule(cron="@daily") == _rule(cron=" 0  0 * * * ")


@pytest.mark.parametrize(
    "options",
    [
        {"cron": " 0,30  2 L * FRI#2"},
        {"cron": "@daily", "timezone": "Asia/Tokyo", "start": NEW_YEAR},
        {"every": 1.000001, "end": NEW_YEAR},
        {"every": timedelta(days=366)},
        {"every": 3_600, "baseline": "2:30", "start": NEW_YEAR, "end": NEW_YEAR},
    ],
)
def test_a_rule_is_read_as_it_was_written(options: dict[str, Any]) -> None:
    with schedules.preserved():
        made = declared(job="x", **options)
    text, when, fires = made.rule, made.when, made.recurrence.preview(9, NEW_YEAR)
    assert len(text) < 512
    with override_settings(TIME_ZONE="Pacific/Apia"):  # it was another one when it was written
        read, end = read_rule(text)
        assert (read.describe(), end) == (when, options.get("end"))
        assert read.preview(9, NEW_YEAR) == fires


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "0", "[]", "{}", '{"every":"x"}', '{"every":1}', '{"end":7}'),
        *('{"cron":"0 2 * * *"}', '{"cron":"0 2 * * *","timezone":"Mars/Olympus"}'),
        '{"every":1' + "0" * 40 + "}",
    ],
)
def test_a_text_that_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_rule(text)


def test_the_projects_time_zone_is_part_of_a_rule_by_the_clock() -> None:
    for options in ({"cron": "0 2 * * *"}, {"every": 3600, "baseline": "02:30"}):
        with override_settings(TIME_ZONE="Asia/Tokyo"):
            tokyo = _rule(**options)
        with override_settings(TIME_ZONE="Europe/Vienna"):
            assert _rule(**options) != tokyo
            assert _rule(**options, timezone="Asia/Tokyo") == tokyo


def test_the_time_zone_is_the_projects_of_now() -> None:
    made = declared(cron="0 2 * * *")
    for name in ("Asia/Tokyo", "Europe/Vienna"):
        with override_settings(TIME_ZONE=name):
            assert made.timezone == name


def _rule(**options: Any) -> str:
    with schedules.preserved():
        return declared(**{"job": "x", **options}).rule


# Names are unique


def test_a_name_belongs_to_one_schedule() -> None:
    schedule("name", every=60, run=clean)
    schedule("b", every=60, job="x")
    for name, options in [
        ("name", {"run": other}),
        ("name", {"run": clean, "max_run": 5}),
        ("name", {"job": "x"}),
        ("b", {"job": "y"}),
        ("b", {"job": "x", "payload": {"n": 1}}),
        ("b", {"run": clean}),
    ]:
        with pytest.raises(DuplicateSchedule, match=f"The schedule '{name}' is declared already"):
            schedule(name, every=60, **options)
    with pytest.raises(
        DuplicateSchedule, match=r"for .*\.clean; another, here for .*\.other, need"
    ):
        register("name", 60, other)
    handler = handlers.get("schedule:name")
    assert handler is not None
    assert handler.function is clean
    assert handlers.get("schedule:b") is None


def test_declaring_the_same_again_changes_nothing() -> None:
    first = [declared(run=clean), schedule("b", every=60, job="x", payload={"n": 1})]
    again = [declared(run=clean), schedule("b", every=60, job="x", payload={"n": 1})]
    assert first == again
    assert here() == ["b", "name"]


def test_a_reloaded_function_replaces_its_older_self() -> None:
    schedule("name", every=60)(clean)
    reloaded = twin(clean)
    made = schedule("name", every=90)(reloaded)
    found = schedules.get("name")
    assert found is not None
    assert found.recurrence == Every(90)
    handler = handlers.get("schedule:name")
    assert handler is not None
    assert handler.function is reloaded
    assert made.handler is handler


def test_a_reloaded_job_replaces_the_schedule_of_its_older_self() -> None:
    schedule("name", every=60)(job("invoice.send")(send))
    schedule("name", every=90)(job("invoice.send")(twin(send)))
    found = schedules.get("name")
    assert found is not None
    assert found.recurrence == Every(90)


def test_a_type_that_is_taken_leaves_no_schedule_behind() -> None:
    register_handler("schedule:name", other)
    with pytest.raises(DuplicateHandler):
        declared(run=clean)
    assert here() == []


def test_racing_declarations_leave_one_schedule() -> None:
    own, lost, start = ScheduleStore(), [], threading.Barrier(8)

    def add(n: int) -> None:
        declaration = Declaration(name="name", recurrence=Every(60), type=f"{n}", via_job=True)
        start.wait()
        try:
            own.add(declaration)
        except DuplicateSchedule as error:
            lost.append(error.code)

    threads = [threading.Thread(target=add, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == ["duplicate-schedule"] * 7
    assert (len(own.all()), own.version) == (1, 1)


# Decorators that were left in the air


def test_a_decorator_that_was_put_on_nothing_is_remembered() -> None:
    decorate = schedule("name", every=60)
    assert (schedules.unfinished(), here()) == (["name"], [])
    decorate(clean)
    assert (schedules.unfinished(), here()) == ([], ["name"])


def test_a_decorator_that_failed_is_remembered() -> None:
    with pytest.raises(InvalidSchedule):
        schedule("name", every=60)(needs)
    assert schedules.unfinished() == ["name"]


# Workers take them


def _declare_by_decorator() -> Any:
    return schedule("name", every=60)(clean)


@pytest.mark.parametrize(
    "declare",
    [
        _declare_by_decorator,
        lambda: schedule("name", every=60, job="x"),
        lambda: register("name", 60, clean),
    ],
)
def test_a_worker_that_has_started_takes_no_more(declare: Callable[[], Any]) -> None:
    schedule("b", every=60, job="x")
    assert "b" in [each.name for each in schedules.take()]
    schedules.take()
    for _ in range(2):
        with pytest.raises(AlreadyStarted, match="'name' was declared after a worker of this") as e:
            declare()
        assert e.value.code == "already-started"
        schedules.release()
    assert handlers.get("schedule:name") is None
    declare()
    assert here() == ["b", "name"]


def test_releasing_without_having_taken_changes_nothing() -> None:
    schedules.release()
    schedules.take()
    with pytest.raises(AlreadyStarted):
        declared()


def test_preserving_restores_what_there_was() -> None:
    declared(job="x")
    with schedules.preserved():
        schedule("b", every=60, job="x")
        schedule("c", every=60)
        schedules.take()
    assert (here(), schedules.unfinished()) == (["name"], [])
    schedule("b", every=60, job="x")


def test_only_this_very_schedule_is_removed() -> None:
    first = declared(job="x")
    second = declared(job="x")
    assert not schedules.remove(first)
    before = schedules.version
    assert schedules.remove(second)
    assert not schedules.remove(second)
    assert (here(), schedules.version) == ([], before + 1)


def test_schedules_come_by_name() -> None:
    for name in ("c", "name", "b"):
        schedule(name, every=60, job="x")
    assert here() == ["b", "c", "name"]
    assert schedules.get("nobody") is None


def test_the_public_names() -> None:
    assert django_durable_jobs.schedule is schedule
    assert django_durable_jobs.register is register
    assert isinstance(schedule("name", every=60)(clean), JobFunction)


@pytest.mark.parametrize("which", ["start", "end"])
def test_a_naive_bound_is_told_of_at_the_line_that_gives_it(
    which: str,
) -> None:
    with pytest.warns(RuntimeWarning, match=f"Schedule.{which} received a naive") as warned:
        schedule("s", job="x", every=60, **{which: datetime(2031, 1, 1)})
    assert warned[0].filename == __file__
