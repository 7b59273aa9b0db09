"""Who may do what in the admin: every address and every action, for every right, as one table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_durable_jobs import job, schedule
from django_durable_jobs.models import Job, Loop, Schedule, TickClaim, TickGap
from django_durable_jobs.registry import handlers, schedules
from tests.doors.test_admin import client_with
from tests.factories import make_job, make_worker, now

pytestmark = [pytest.mark.django_db, pytest.mark.once]

APP = "django_durable_jobs"
MODELS = {
    model._meta.model_name: page
    for model, page in admin.site._registry.items()
    if model._meta.app_label == APP
}

Way = frozenset[str]  # rights that are enough together
Ways = tuple[Way, ...]  # any of these will do
NOBODY: Ways = ()
STAFF: Ways = (frozenset(),)
NOT_BY_GET = None  # told so before anybody's rights are looked at


def ways(*each: str) -> Ways:
    """Return ways, each written as rights joined by "+"."""
    return tuple(frozenset(way.split("+")) for way in each)


def seen(model: str, right: str = "") -> Ways:
    """Return who may see pages of the model, and has a right as well if one is named.

    Django lets those look who may change, whether or not there is anything to change.
    """
    looks = (f"view_{model}", f"change_{model}")
    return ways(*(f"{look}+{right}" if right else look for look in looks))


def read_only(model: str) -> dict[str, tuple[Ways | None, Ways]]:
    """Return who may GET and who may POST where nothing is added, changed or deleted."""
    return {
        f"{model}_changelist": (seen(model), seen(model)),
        f"{model}_history": (seen(model), seen(model)),
        f"{model}_change": (seen(model), NOBODY),
        f"{model}_add": (NOBODY, NOBODY),
        f"{model}_delete": (NOBODY, NOBODY),
    }


LOOKS = ways("view_job", "view_execution", "view_worker", "view_schedule", "view_loop")
ADDRESSES: dict[str, tuple[Ways | None, Ways]] = {
    "overview_changelist": (LOOKS, LOOKS),
    **read_only("job"),
    "job_cancel": (NOT_BY_GET, seen("job", "cancel_job")),
    "job_requeue": (NOT_BY_GET, seen("job", "requeue_job")),
    "job_resolve": (NOT_BY_GET, seen("job", "resolve_job")),
    "job_stop": (NOT_BY_GET, seen("job", "stop_job")),
    "job_run_now": (NOT_BY_GET, seen("job", "run_job_now")),
    **read_only("execution"),
    **read_only("worker"),
    **read_only("schedule"),
    "schedule_pause": (NOT_BY_GET, seen("schedule", "pause_schedule")),
    "schedule_resume": (NOT_BY_GET, seen("schedule", "pause_schedule")),
    "schedule_fire": (NOT_BY_GET, seen("schedule", "fire_schedule")),
    "schedule_make_up": (NOT_BY_GET, seen("schedule", "fire_schedule")),
    **read_only("tickclaim"),
    **read_only("tickgap"),
    **read_only("loop"),
    "loop_change": (seen("loop"), ways("change_loop")),
    "loop_add": (ways("add_loop"), ways("add_loop")),
    "loop_delete": (ways("delete_loop"), ways("delete_loop")),
    "loop_preview": (NOT_BY_GET, ways("change_loop")),
    "loop_preview_new": (NOT_BY_GET, ways("add_loop")),
    "loop_enable": (NOT_BY_GET, ways("change_loop")),
    "loop_disable": (NOT_BY_GET, ways("change_loop")),
    "loop_run_now": (NOT_BY_GET, seen("loop", "fire_loop")),
    "loop_sync": (NOT_BY_GET, seen("loop", "sync_loop")),
}
ACTIONS: dict[str, Ways] = {
    "job.cancel_selected": seen("job", "cancel_job"),
    "job.requeue_selected": seen("job", "requeue_job"),
    "job.resolve_selected": seen("job", "resolve_job"),
    "job.stop_selected": seen("job", "stop_job"),
    "job.run_now_selected": seen("job", "run_job_now"),
    "schedule.pause_selected": seen("schedule", "pause_schedule"),
    "schedule.resume_selected": seen("schedule", "pause_schedule"),
    "schedule.fire_selected": seen("schedule", "fire_schedule"),
    "loop.enable_selected": ways("change_loop"),
    "loop.disable_selected": ways("change_loop"),
    "loop.run_selected": seen("loop", "fire_loop"),
    # Django's own: not among those of our pages, but it comes with every site.
    "job.delete_selected": NOBODY,
    "execution.delete_selected": NOBODY,
    "worker.delete_selected": NOBODY,
    "schedule.delete_selected": NOBODY,
    "tickclaim.delete_selected": NOBODY,
    "tickgap.delete_selected": NOBODY,
    "loop.delete_selected": seen("loop", "delete_loop"),
}
ANSWER = {"confirmed": "yes", "reason": "why", "post": "yes", "tick": "2026-05-04T12:00:00+00:00"}


def rights() -> list[str]:
    """Return every right of the app's."""
    found = set()
    for model in apps.get_app_config(APP).get_models():
        found |= {f"{each}_{model._meta.model_name}" for each in model._meta.default_permissions}
        found |= {codename for codename, _name in model._meta.permissions}
    return sorted(found)


OWN = [
    right for right in rights() if right.split("_")[0] not in ("add", "change", "delete", "view")
]
VIEWS = [right for right in rights() if right.startswith("view_")]
LOOP = ("add_loop", "change_loop", "delete_loop")
PERSONS: dict[str, Way] = {
    "without rights": frozenset(),
    **{right: frozenset([right]) for right in (*OWN, *VIEWS, *LOOP, "change_job")},
    "adds and deletes": frozenset(
        right for right in rights() if right.startswith(("add_", "delete_")) and right not in LOOP
    ),
    "view only": frozenset(VIEWS) - {"view_payload", "view_secrets"},
    **{
        f"all but {missing}": frozenset(rights()) - {missing}
        for missing in (*OWN, *LOOP, "view_loop", "view_job")
    },
}
LOOKING = {name: held for name, held in PERSONS.items() if name in ("view only", *VIEWS)}


class Asked(NamedTuple):
    """A request, and who may make it."""

    name: str
    method: str
    url: str
    data: dict[str, Any]
    ways: Ways | None


@pytest.fixture
def rows() -> Iterator[dict[str, Any]]:
    """Make a row of each kind, with others that each deed would do something to."""
    with handlers.preserved(), schedules.preserved():

        @job("books.index")
        def index() -> None: ...

        schedule("s", cron="0 * * * *", timezone="UTC", job="books.index")
        worker = make_worker()
        waits = make_job(run_at=now() + timedelta(hours=1))
        stopped = make_job("interrupted", worker=worker)
        columns = {"namespace": "default", "name": "s"}
        ticking: dict[str, Any] = columns | {"kind": "cron", "when": "0 * * * *", "timezone": "UTC"}
        ticking |= {"declared_at": now()}
        ticks = Schedule.objects.create(**ticking)
        paused = Schedule.objects.create(**(ticking | {"name": "p"}), paused_at=now())
        loops = {"job_type": "books.index", "payload": {}, "every": timedelta(hours=1)}
        loop = Loop.objects.create(name="on", **loops)
        off = Loop.objects.create(name="off", enabled=False, **loops)
        yield {
            "job": waits,
            "job_requeue": stopped,
            "job_resolve": stopped,
            "job_stop": make_job("running", worker=worker),
            "execution": stopped.executions.get(),
            "worker": worker,
            "schedule": ticks,
            "schedule_resume": paused,
            "tickclaim": TickClaim.objects.create(
                scheduled_at=now(), claimed_at=now(), outcome="fired", **columns
            ),
            "tickgap": TickGap.objects.create(
                first=now(), last=now(), count=1, reason="no-leader", **columns
            ),
            "loop": loop,
            "loop_enable": off,
        }


def everything_asked(rows: dict[str, Any]) -> Iterator[Asked]:
    """Yield each address by both methods, and each action."""
    for name, (by_get, by_post) in ADDRESSES.items():
        model = name.split("_")[0]
        row: Any = rows.get(name, rows.get(model))
        plain = name.endswith(("_changelist", "_add", "_sync", "_preview_new"))
        url = reverse(f"admin:{APP}_{name}", args=() if plain else (row.pk,))
        yield Asked(name, "get", url, {}, by_get)
        yield Asked(name, "post", url, ANSWER, by_post)
    for name, allowed in ACTIONS.items():
        model, action = name.split(".")
        deed = f"{model}_{action.removesuffix('_selected')}"
        row = rows.get(deed, rows[model])
        url = reverse(f"admin:{APP}_{model}_changelist")
        data = {name: said for name, said in ANSWER.items() if name != "tick"}
        data |= {"action": action, "_selected_action": str(row.pk)}
        yield Asked(name, "post", url, data, allowed)


def stored() -> dict[str, list[Any]]:
    """Return all that the app has stored, and what was logged."""
    models = [model for model in apps.get_app_config(APP).get_models() if not model._meta.proxy]
    found = {each.__name__: list(each._base_manager.order_by("pk").values()) for each in models}
    return found | {"logged": list(LogEntry.objects.order_by("pk").values())}


def enough(held: Way, allowed: Ways) -> bool:
    return any(way <= held for way in allowed)


def test_the_table_has_a_row_for_every_address_and_action_and_for_no_other() -> None:
    addresses, actions = set(), set()
    for model, page in MODELS.items():
        for pattern in page.get_urls():
            if pattern.name is None:  # Django's redirect of old addresses, which asks nobody
                assert str(pattern.pattern) == "<path:object_id>/"
                continue
            addresses.add(pattern.name.removeprefix(f"{APP}_"))
        actions |= {f"{model}.{action}" for action in page.actions or ()}
        if model != "overview":
            actions.add(f"{model}.delete_selected")
    assert addresses == set(ADDRESSES)
    assert actions == set(ACTIONS)


@pytest.mark.parametrize("person", PERSONS)
def test_nobody_comes_further_than_their_rights(person: str, rows: dict[str, Any]) -> None:
    held = PERSONS[person]
    client = client_with(*held)
    refused = [each for each in everything_asked(rows) if not enough(held, each.ways or ())]
    before = stored()
    for each in refused:
        response = getattr(client, each.method)(each.url, each.data)
        sees = "." in each.name and enough(held, seen(each.name.split(".")[0]))
        # Who sees the list is not offered the action, and is told that it is none.
        expected = 405 if each.ways is None else 302 if sees else 403
        assert response.status_code == expected or (sees and response.status_code == 200), each
    assert stored() == before


@pytest.mark.parametrize("person", [*LOOKING, "superuser"])
def test_everybody_sees_as_far_as_their_rights(person: str, rows: dict[str, Any]) -> None:
    client = Client()
    if person == "superuser":
        held = frozenset(rights())
        client.force_login(User.objects.create_superuser("root"))
    else:
        held = LOOKING[person]
        client = client_with(*held)
    for each in everything_asked(rows):
        if each.ways is not None and enough(held, each.ways) and each.method == "get":
            assert client.get(each.url).status_code == 200, each


@pytest.mark.parametrize("name", [name for name, (_get, post) in ADDRESSES.items() if post])
def test_each_way_that_the_table_names_is_enough(name: str, rows: dict[str, Any]) -> None:
    for way in ADDRESSES[name][1]:
        (asked,) = (
            each for each in everything_asked(rows) if (each.name, each.method) == (name, "post")
        )
        response = client_with(*way).post(asked.url, asked.data)
        assert response.status_code in (200, 302), asked
        assert "login" not in response.headers.get("Location", "")


@pytest.mark.parametrize("name", [name for name, allowed in ACTIONS.items() if allowed])
def test_each_action_is_done_by_each_way_that_the_table_names(
    name: str, rows: dict[str, Any]
) -> None:
    (asked,) = (each for each in everything_asked(rows) if each.name == name)
    client = client_with(*ACTIONS[name][0])
    response = client.post(asked.url, asked.data, follow=True)
    assert LogEntry.objects.count() == 1, list(map(str, response.context["messages"]))


def test_whoever_is_not_logged_in_or_no_staff_is_sent_to_the_login(rows: dict[str, Any]) -> None:
    visitor = Client()
    visitor.force_login(User.objects.create_user("visitor"))
    visitor_rights = Permission.objects.filter(content_type__app_label=APP)
    User.objects.get(username="visitor").user_permissions.set(visitor_rights)
    before = stored()
    for client in (Client(), visitor):
        for each in everything_asked(rows):
            response = getattr(client, each.method)(each.url, each.data)
            assert response.status_code == 302, each
            assert response.headers["Location"].startswith(reverse("admin:login")), each
    assert stored() == before


@pytest.mark.parametrize("name", [name for name in ADDRESSES if "changelist" not in name])
def test_a_row_that_is_not_there_is_no_error(name: str, admin_client: Client) -> None:
    for key in ("nonsense", "999999999999999999999", "00000000-0000-0000-0000-000000000000", "1'"):
        try:
            url = reverse(f"admin:{APP}_{name}", args=(key,))
        except Exception:  # those that take no row
            return
        for ask in (admin_client.get, admin_client.post):
            assert ask(url, ANSWER).status_code in (302, 403, 404, 405), (name, key)
    assert not Job.objects.exists()
