"""Settings are typed and lazy, and say what is wrong with them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django.utils import timezone

from django_durable_jobs.conf import Problem, Settings, problems, settings


def multi_user() -> bool:
    return True


DEFAULTS = {
    "NAMESPACE": "default",
    "DATABASE": None,
    "CONCURRENCY": 4,
    "GLOBAL_CONCURRENCY": None,
    "OWNER_CONCURRENCY": 1,
    "UNCAPPED_OWNERS": frozenset({"", "local-user"}),
    "MAX_SLEEP": 30.0,
    "POLL_INTERVAL": 1.0,
    "LISTEN": True,
    "HEARTBEAT": 5.0,
    "LEASE": 30.0,
    "SHUTDOWN_GRACE": 25.0,
    "JOB_TIMEOUT": None,
    "SCHEDULE_MAX_RUN": 600.0,
    "ON_INTERRUPT": "keep",
    "RECOVER_UNSTARTED": "interrupt",
    "CATCH_UP_WINDOW": 3600.0,
    "TICK_RETENTION": 604_800.0,
    "PRUNE_INTERVAL": 60.0,
    "JOB_RETENTION": 2_592_000.0,
    "LOOP_SYNC_INTERVAL": 60.0,
    "MULTI_USER": False,
    "AUDIT": True,
}


def found(given: Any) -> list[Problem]:
    with override_settings(DURABLE_JOBS=given):
        return problems()


@pytest.mark.parametrize(("key", "default"), DEFAULTS.items())
def test_every_key_has_a_default(key: str, default: object) -> None:
    with override_settings(DURABLE_JOBS={}):
        value = getattr(settings, key)
    assert value == default
    assert type(value) is type(default)


def test_the_table_of_defaults_is_complete() -> None:
    keys = {name for name in vars(Settings) if name.isupper()}
    assert keys == {*DEFAULTS, "MASK"}


def test_defaults_have_no_problems() -> None:
    assert found({}) == []


def test_mask_names_what_is_usually_secret() -> None:
    with override_settings(DURABLE_JOBS={}):
        assert {"password", "token", "secret"} <= set(settings.MASK)


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("LEASE", timedelta(minutes=1), 60.0),
        ("LEASE", 45, 45.0),
        ("MAX_SLEEP", 0.01, 0.01),
        ("TICK_RETENTION", timedelta(days=30), 2_592_000.0),
        ("JOB_RETENTION", None, None),
        ("JOB_TIMEOUT", timedelta(seconds=90), 90.0),
        ("SHUTDOWN_GRACE", 0, 0.0),
        ("UNCAPPED_OWNERS", ["acme"], frozenset({"acme"})),
        ("MASK", {"PIN"}, ("pin",)),
        ("DATABASE", "default", "default"),
        ("NAMESPACE", "Küche 7", "Küche 7"),
        ("MULTI_USER", True, True),
        ("MULTI_USER", multi_user, multi_user),
        ("MULTI_USER", "django.utils.timezone.now", timezone.now),
        ("ON_INTERRUPT", "requeue", "requeue"),
        ("RECOVER_UNSTARTED", "requeue", "requeue"),
    ],
)
def test_accepted_values_are_given_out_in_one_form(key: str, given: Any, value: object) -> None:
    with override_settings(DURABLE_JOBS={key: given}):
        assert problems() == []
        assert getattr(settings, key) == value
        assert type(getattr(settings, key)) is type(value)


@pytest.mark.parametrize(
    ("key", "given", "number", "words"),
    [
        ("NAMESPACE", 7, 3, "is of type int; accepted: text of 1 to 64 characters, not blank."),
        ("NAMESPACE", " ", 4, "is blank"),
        ("NAMESPACE", "n" * 65, 4, "has 65 characters"),
        ("NAMESPACE", "a\nb", 4, "holds control characters"),
        ("DATABASE", "nowhere", 8, "'nowhere', which DATABASES does not have"),
        ("DATABASE", 7, 3, "is of type int"),
        ("CONCURRENCY", 0, 4, "is 0; accepted: a whole number, at least 1."),
        ("CONCURRENCY", "4", 3, "is of type str; accepted: a whole number"),
        ("CONCURRENCY", 4.0, 3, "is of type float"),
        ("CONCURRENCY", True, 3, "is of type bool"),
        ("CONCURRENCY", None, 3, "is of type NoneType"),
        ("GLOBAL_CONCURRENCY", 0, 4, "accepted: None, or a whole number"),
        ("OWNER_CONCURRENCY", -1, 4, "is -1"),
        ("UNCAPPED_OWNERS", "acme", 3, "is of type str; accepted: a list of strings."),
        ("UNCAPPED_OWNERS", [7], 3, "holds 7, which is not text"),
        ("MASK", [""], 4, "holds blank text"),
        ("MAX_SLEEP", 0.009, 4, "is 0.009"),
        ("MAX_SLEEP", True, 3, "is of type bool"),
        ("MAX_SLEEP", "30", 3, "accepted: a timedelta or a number of seconds, at least 0.01 s"),
        ("MAX_SLEEP", float("nan"), 4, "is nan"),
        ("MAX_SLEEP", float("inf"), 4, "is inf"),
        ("MAX_SLEEP", timedelta(days=-1), 4, "at least 0.01 s"),
        ("LEASE", 10**400, 4, "at most 100 years"),
        ("POLL_INTERVAL", 0, 4, "is 0"),
        ("LISTEN", 1, 3, "accepted: True or False"),
        ("ON_INTERRUPT", "retry", 4, "is 'retry'; accepted: 'keep' or 'requeue'."),
        ("RECOVER_UNSTARTED", "keep", 4, "accepted: 'interrupt' or 'requeue'"),
        ("LEASE", 9.9, 5, "is 9.9 s; accepted: at least two HEARTBEATs (10 s)"),
        ("CATCH_UP_WINDOW", timedelta(days=4), 6, "at most half of TICK_RETENTION (302400 s)"),
        ("TICK_RETENTION", None, 3, "is of type NoneType"),
        ("JOB_RETENTION", -1, 4, "is -1"),
        ("MULTI_USER", "no.such.module.f", 7, "cannot be imported"),
        ("MULTI_USER", 1, 3, "is of type int; accepted: True, False, a function"),
        ("MULTI_USER", "django.VERSION", 3, "is of type tuple"),
        ("AUDIT", "no", 3, "is of type str"),
    ],
)
def test_refused_values_say_what_is_accepted(key: str, given: Any, number: int, words: str) -> None:
    with override_settings(DURABLE_JOBS={key: given}):
        [problem] = problems()
        assert (problem.key, problem.number) == (key, number)
        assert problem.id == f"durable_jobs.E{number:03}"
        assert problem.message.startswith(f"DURABLE_JOBS['{key}'] ")
        assert words in problem.message
        assert "default" in problem.hint
        with pytest.raises(ImproperlyConfigured) as caught:
            getattr(settings, key)
    assert str(caught.value) == problem.message


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("CONCURENCY", "Did you mean 'CONCURRENCY'?"),
        ("lease", "Did you mean 'LEASE'?"),
        ("QQQQ", "The keys are AUDIT, "),
        (7, "The keys are AUDIT, "),
    ],
)
def test_unknown_keys_are_told_the_nearest_name(key: object, hint: str) -> None:
    [problem] = found({key: 1})
    assert problem.id == "durable_jobs.E002"
    assert repr(key) in problem.message
    assert problem.hint.startswith(hint)


def test_all_problems_are_told_at_once() -> None:
    keys = [problem.key for problem in found({"X": 1, "AUDIT": 0, "CONCURRENCY": 0, "LEASE": 5})]
    assert keys == ["X", "CONCURRENCY", "LEASE", "AUDIT"]


@pytest.mark.parametrize("given", [[], None, "x"])
def test_what_is_no_dict_is_one_problem(given: object) -> None:
    with override_settings(DURABLE_JOBS=given):
        [problem] = problems()
        assert problem.id == "durable_jobs.E001"
        with pytest.raises(ImproperlyConfigured, match="accepted: a dict"):
            _ = settings.AUDIT


def test_a_wrong_key_does_not_spoil_the_others() -> None:
    with override_settings(DURABLE_JOBS={"CONCURRENCY": 0, "HEARTBEAT": "x"}):
        assert settings.NAMESPACE == "default"
        assert settings.LEASE == 30.0  # the wrong heartbeat is reported for itself
        assert [problem.key for problem in problems()] == ["CONCURRENCY", "HEARTBEAT"]


@pytest.mark.parametrize("never", [0, -1, timedelta(days=-1)])
def test_the_window_is_unbounded_where_ticks_are_never_pruned(never: Any) -> None:
    assert found({"TICK_RETENTION": never, "CATCH_UP_WINDOW": timedelta(days=900)}) == []


def test_overridden_settings_are_noticed_and_forgotten_again() -> None:
    before = settings.CONCURRENCY
    with override_settings(DURABLE_JOBS={"CONCURRENCY": 9}):
        assert settings.CONCURRENCY == 9
    assert before == settings.CONCURRENCY


def test_a_dotted_path_is_imported_only_when_read() -> None:
    with override_settings(DURABLE_JOBS={"MULTI_USER": "no.such.module.f"}):
        assert settings.CONCURRENCY == 4


def test_keys_cannot_be_assigned() -> None:
    with pytest.raises(AttributeError, match="in the project's settings instead"):
        settings.CONCURRENCY = 5  # type: ignore[assignment]
