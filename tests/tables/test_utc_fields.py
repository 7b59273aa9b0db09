"""Times are stored in UTC and read aware, whatever USE_TZ and the session's time zone say."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.core import serializers
from django.db import connection
from django.db.models import Count, DateTimeField, F, Max, Min, Subquery, Value
from django.db.models.functions import Coalesce, Greatest, TruncDay
from django.forms import SplitDateTimeField, modelform_factory
from django.test import override_settings
from django.utils import timezone as django_timezone

from django_durable_jobs.db import current_clock, now_expression
from django_durable_jobs.fields import UTCDateTimeField
from django_durable_jobs.models import Job, QueueEntry
from tests.databases import subprocess_environment
from tests.factories import make_job

VIENNA = ZoneInfo("Europe/Vienna")
MOMENT = datetime(2024, 5, 1, 12, 34, 56, 789_012, tzinfo=UTC)
# An hour that Vienna has twice, told apart by fold: 00:30 and 01:30 UTC.
FIRST = datetime(2024, 10, 27, 2, 30, tzinfo=VIENNA)
SECOND = FIRST.replace(fold=1)

pytestmark = pytest.mark.django_db(transaction=True)


def store(*moments: datetime) -> None:
    for moment in moments:
        make_job(run_at=moment)


def set_session_zone(name: str) -> None:
    """Have the database's session think that it is in ``name``; SQLite has no such thing."""
    statement = {
        "postgresql": f"SET TIME ZONE '{name}'",
        "mysql": f"SET time_zone = '{name}'",
    }.get(connection.vendor)
    if statement:
        with connection.cursor() as cursor:
            cursor.execute(statement)


@pytest.fixture(params=["UTC", "local", "session", "alias"])
def zone(request: pytest.FixtureRequest):
    """Go through what a project or its database may have chosen; all of it must not matter.

    The connection is opened anew, since Django sets its session up by USE_TZ and TIME_ZONE.
    """
    connection.close()
    settings = connection.settings_dict
    before = settings["TIME_ZONE"]
    with override_settings(USE_TZ=request.param != "local"):
        settings["TIME_ZONE"] = "Asia/Tokyo" if request.param == "alias" else before
        for name in ("timezone", "timezone_name"):
            connection.__dict__.pop(name, None)
        if request.param == "session":
            set_session_zone("+05:00" if connection.vendor == "mysql" else "Asia/Tokyo")
        yield request.param
    settings["TIME_ZONE"] = before
    for name in ("timezone", "timezone_name"):
        connection.__dict__.pop(name, None)
    connection.close()


MOMENTS = [
    MOMENT,
    MOMENT.replace(microsecond=0),
    MOMENT.replace(microsecond=1),
    MOMENT.astimezone(timezone(timedelta(hours=-11))),
    FIRST,
    SECOND,
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_an_instant_comes_back_as_it_was_in_utc(zone: str, moment: datetime) -> None:
    store(moment)
    found = Job.objects.get().run_at
    assert found == moment.astimezone(UTC)
    assert (found.tzinfo, found.fold) == (UTC, 0)


def test_values_and_only_and_refresh_read_the_same(zone: str) -> None:
    store(MOMENT)
    assert Job.objects.values("run_at").get() == {"run_at": MOMENT}
    assert Job.objects.values_list("run_at", flat=True).get() == MOMENT
    assert Job.objects.only("run_at").get().run_at == MOMENT
    job = Job.objects.defer("run_at").get()
    assert job.run_at == MOMENT
    job.refresh_from_db(fields=["run_at"])
    assert job.run_at == MOMENT
    assert QueueEntry.objects.select_related("job").get().job.run_at == MOMENT


def test_filters_compare_instants(zone: str) -> None:
    step = timedelta(microseconds=1)
    store(MOMENT)
    here = MOMENT.astimezone(VIENNA)
    for moment in (MOMENT, here):
        assert Job.objects.filter(run_at=moment).exists()
        assert Job.objects.filter(run_at__in=[moment]).exists()
        assert Job.objects.filter(run_at__range=(moment - step, moment)).exists()
        assert Job.objects.filter(run_at__lte=moment, run_at__gte=moment).exists()
        assert not Job.objects.filter(run_at__lt=moment).exists()
        assert not Job.objects.filter(run_at__gt=moment).exists()
        assert Job.objects.filter(run_at__lt=moment + step, run_at__gt=moment - step).exists()
    assert Job.objects.exclude(run_at=MOMENT).count() == 0


def test_the_order_is_that_of_time(zone: str) -> None:
    whole = MOMENT.replace(microsecond=0)
    moments = [FIRST, SECOND, whole, whole + timedelta(microseconds=1), MOMENT]
    store(*reversed(moments))
    found = list(Job.objects.order_by("run_at").values_list("run_at", flat=True))
    assert found == sorted(moment.astimezone(UTC) for moment in moments)
    descending = Job.objects.order_by("-run_at").values_list("run_at", flat=True)
    assert list(descending) == found[::-1]
    assert list(Job.objects.order_by("run_at").values_list("run_at", flat=True).distinct()) == found


def test_aggregates_and_functions_give_instants(zone: str) -> None:
    store(FIRST, SECOND)
    jobs = Job.objects.all()
    first, second = FIRST.astimezone(UTC), SECOND.astimezone(UTC)
    ends = {"first": first, "last": second}
    assert jobs.aggregate(first=Min("run_at"), last=Max("run_at")) == ends
    assert jobs.distinct().aggregate(first=Min("run_at"), last=Max("run_at")) == ends
    assert jobs.values("run_at").annotate(n=Count("id")).order_by("run_at")[1]["run_at"] == second
    latest = jobs.annotate(
        latest=Greatest("run_at", "claimable_at"), either=Coalesce("finished_at", "run_at")
    )
    assert latest.order_by("-run_at").values_list("latest", "either")[0] == (second, second)
    given = jobs.annotate(given=Value(FIRST, output_field=UTCDateTimeField()))
    assert given.values_list("given", flat=True)[0] == first


def test_subqueries_compare_instants(zone: str) -> None:
    store(FIRST, SECOND, MOMENT)
    jobs = Job.objects.all()
    second = SECOND.astimezone(UTC)  # by Python's rules a time in a fold equals no other zone's
    late = jobs.filter(run_at__gte=SECOND).values("run_at")
    assert jobs.get(run_at__in=late).run_at == second
    newest = jobs.order_by("-run_at").values("run_at")[:1]
    assert jobs.get(run_at=newest).run_at == second
    chosen = jobs.annotate(newest=Subquery(newest)).values_list("newest", flat=True).distinct()
    assert chosen.get() == second
    assert jobs.update(claimable_at=F("run_at")) == 3
    assert jobs.filter(claimable_at=F("run_at")).count() == 3
    union = jobs.filter(run_at=FIRST).values_list("run_at", flat=True)
    assert set(union.union(jobs.filter(run_at=MOMENT).values_list("run_at", flat=True))) == {
        FIRST.astimezone(UTC),
        MOMENT,
    }


def test_what_is_saved_by_the_orm_is_stored_alike(zone: str) -> None:
    store(MOMENT)
    job = Job.objects.get()
    job.run_at = FIRST
    job.save(update_fields=["run_at"])
    Job.objects.update(claimable_at=FIRST)
    assert Job.objects.filter(run_at=F("claimable_at")).exists()
    job.run_at = SECOND
    Job.objects.bulk_update([job], ["run_at"])
    assert Job.objects.get().run_at == SECOND.astimezone(UTC)
    job.run_at = "2024-05-01T12:34:56.789012Z"  # type: ignore[assignment] # as loaddata has it
    job.save(update_fields=["run_at"])
    assert Job.objects.filter(run_at=MOMENT).exists()
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_at = claimable_at FROM django_durable_jobs_job")
        assert not cursor.fetchone()[0]


@pytest.mark.parametrize("fold", [0, 1])
def test_a_naive_time_is_taken_in_the_projects_zone(fold: int) -> None:
    with override_settings(USE_TZ=False):
        connection.close()
        job = make_job()
        naive = FIRST.replace(tzinfo=None, fold=fold)
        job.run_at = naive
        job.save(update_fields=["run_at"])
        expected = naive.replace(tzinfo=VIENNA).astimezone(UTC)
        assert Job.objects.get().run_at == expected
        assert Job.objects.filter(run_at=naive).exists()
        Job.objects.update(claimable_at=naive)
        assert Job.objects.get().claimable_at == expected
    connection.close()


def test_a_naive_time_is_told_of_under_use_tz() -> None:
    job = make_job()
    job.run_at = FIRST.replace(tzinfo=None)
    with pytest.warns(RuntimeWarning, match="received a naive datetime"):
        job.save(update_fields=["run_at"])
    assert Job.objects.get().run_at == FIRST.astimezone(UTC)


def test_the_databases_clock_is_the_same_as_a_value_and_in_statements(zone: str) -> None:
    store(MOMENT)
    before = current_clock().now(connection)
    Job.objects.update(run_at=now_expression(connection))
    after = current_clock().now(connection)
    assert before.tzinfo == UTC
    assert before <= Job.objects.get().run_at <= after
    assert abs(before - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.skipif(
    connection.vendor == "mysql", reason="its server has no time zone tables to tell days by"
)
def test_days_are_those_of_the_current_time_zone() -> None:
    store(datetime(2024, 5, 1, 22, 30, tzinfo=UTC))  # half past midnight in Vienna
    assert Job.objects.filter(run_at__date="2024-05-02").exists()
    day = Job.objects.annotate(day=TruncDay("run_at", output_field=DateTimeField())).get().day
    assert day == datetime(2024, 5, 2, tzinfo=VIENNA)


@pytest.mark.parametrize("use_tz", [True, False])
def test_forms_show_and_read_in_the_current_time_zone(use_tz: bool) -> None:
    with override_settings(USE_TZ=use_tz), django_timezone.override("Asia/Tokyo"):
        form_class = modelform_factory(Job, fields=["run_at"])
        form = form_class(instance=Job(run_at=MOMENT))
        assert 'value="2024-05-01 21:34:56' in str(form["run_at"])
        read = form_class({"run_at": "2024-05-01 21:34:56"})
        assert read.is_valid()
        assert read.cleaned_data["run_at"] == MOMENT.replace(microsecond=0)
        again = form_class({"run_at": "2024-05-01 21:34:56"}, instance=read.instance)
        assert not again.has_changed()
        # What the admin has: a date and a time side by side.
        field = Job._meta.get_field("run_at").formfield(form_class=SplitDateTimeField)
        shown = field.widget.decompress(field.prepare_value(MOMENT))
        assert [str(part)[:10].split(".")[0] for part in shown] == ["2024-05-01", "21:34:56"]
        assert field.clean(["2024-05-01", "21:34:56"]) == MOMENT.replace(microsecond=0)


@pytest.mark.parametrize("use_tz", [True, False])
def test_fixtures_bring_instants_back(use_tz: bool) -> None:
    store(SECOND)
    with override_settings(USE_TZ=use_tz):
        connection.close()
        text = serializers.serialize("json", Job.objects.all())
        Job.objects.all().delete()
        for item in serializers.deserialize("json", text):
            item.save()
        assert Job.objects.get().run_at == SECOND.astimezone(UTC)
    connection.close()


@pytest.mark.processes
@pytest.mark.parametrize("use_tz", ["1", "0"])
def test_processes_with_and_without_use_tz_read_each_others_times(use_tz: str) -> None:
    """Overriding USE_TZ leaves what was set up before as it was: a process of its own does not."""
    store(FIRST, SECOND)
    program = (
        "import django; django.setup()\n"
        "from django_durable_jobs import enqueue, list_jobs\n"
        "found = list_jobs().order_by('run_at')\n"
        "print(*(job.run_at.isoformat() for job in found))\n"
        "print(enqueue('x', run_at=found[1].run_at).run_at.isoformat())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=subprocess_environment() | {"DDJ_USE_TZ": use_tz},
        check=True,
        capture_output=True,
        text=True,
    )
    first, second = FIRST.astimezone(UTC), SECOND.astimezone(UTC)
    assert answer.stdout.split() == [first.isoformat(), second.isoformat(), second.isoformat()]
    assert Job.objects.filter(run_at=SECOND).count() == 2
