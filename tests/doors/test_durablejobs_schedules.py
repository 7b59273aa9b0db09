"""`manage.py durablejobs` for schedules: status, pause, resume, fire, preview, prune."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from django_durable_jobs import pause_schedule, schedule
from django_durable_jobs.management.subcommands import scope
from django_durable_jobs.management.subcommands import status as status_command
from django_durable_jobs.management.subcommands.telling import how_long
from django_durable_jobs.models import Job, Namespace, QueueEntry, Schedule, TickClaim, Worker
from django_durable_jobs.states import State
from tests import databases
from tests.clockwork import Clockwork, at, clockwork, end, fired, jobs, missed, row
from tests.factories import make_job, make_worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def work(transactional_db: None, settings: Any) -> Iterator[Clockwork]:
    settings.TIME_ZONE = "Europe/Vienna"
    with clockwork() as each:
        yield each


def hourly(work: Clockwork, name: str = "s", **options: Any) -> None:
    options = {"cron": "0 * * * *", "timezone": "Europe/Vienna", **options}
    schedule(name, run=lambda: None, **options)
    work.start()


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("durablejobs", *arguments, stdout=out)
    return out.getvalue()


def refused(*arguments: str) -> tuple[int, str]:
    """Return exit code and message of a call that is refused."""
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    return caught.value.returncode, str(caught.value)


# Status


def test_status_is_a_screen_for_people(work: Clockwork) -> None:
    make_worker(pk=work.worker, host="web-1", pid=7, active=3, heartbeat_at=at(12))
    make_worker(host="web-2", pid=8, healthy=False, error="gone", heartbeat_at=at(12))
    make_worker(host="web-3", pid=9, heartbeat_at=at(11, 50))
    hourly(work, "nightly-cleanup", cron="0 2 * * *")
    hourly(work, "report", cron="*/20 * * * *")
    make_job(type="mail", id="01900000-0000-7000-8000-000000000000", run_at=at(11, 56))
    work.go(at(12, 20))
    Worker.objects.exclude(host="web-3").update(heartbeat_at=at(12, 20))
    end(jobs("report")[0], State.FAILED, error="ValueError: no\nmore of it")
    work.go(at(12, 21))
    pause_schedule("nightly-cleanup", by="ann", reason="the disk is full")
    Worker.objects.exclude(host="web-3").update(heartbeat_at=at(12, 21), types=["mail"])
    work.lead()
    assert run("status").splitlines() == [
        "Namespace   default, 2026-05-04 14:21:00 CEST (12:21:00 UTC)",
        "Workers     2 live, 3 of 8 slots busy",
        "  web-1:7  3 of 4  leads  running",
        "  web-2:8  0 of 4         in trouble: gone",
        "  web-3:9  0 of 4         silent for 31 min",
        "Leader      web-1:7, epoch 2, since 2026-05-04 14:21:00 CEST",
        "Jobs        1 queued, 0 claimed, 0 running",
        "Oldest due  mail 01900000-0000-7000-8000-000000000000, due for 25 min, queue default",
        "Ended       0 completed, 1 failed, 0 interrupted in the last 5 min: 0.2 a minute",
        "Schedules   2: 0 running, 1 with errors; 1 fire, 0 misses",
        "  name             when                             next fire"
        "                            last run  fires  misses",
        "  report           cron */20 * * * * Europe/Vienna  2026-05-04 14:40:00 CEST, in 19 min"
        "  60 s ago      1       0  failed",
        "    failed at 2026-05-04 14:20:00 CEST: ValueError: no more of it",
        "  nightly-cleanup  cron 0 2 * * * Europe/Vienna     2026-05-05 02:00:00 CEST"
        "             never         0       0  paused",
        "    paused since 2026-05-04 14:21:00 CEST by ann: the disk is full",
    ]


def test_status_tells_what_is_due_next_and_lists_first_what_fires_first(work: Clockwork) -> None:
    hourly(work, "late", cron="0 20 * * *")
    hourly(work, "gone")
    hourly(work, "over", end=at(12, 30))
    hourly(work, "soon", every=60, cron=None)
    Schedule.objects.filter(name="gone").update(retired_at=at(12))
    make_job(run_at=at(12, 10))
    QueueEntry.objects.update(due=False)
    lines = run("status").splitlines()
    assert "Next due    2026-05-04 14:10:00 CEST, in 10 min" in lines
    start = next(number for number, line in enumerate(lines) if line.startswith("  name"))
    assert [line.split()[0] for line in lines[start + 1 :]] == ["soon", "late", "over", "gone"]
    work.clock.value = at(12, 30)
    assert "Next due    2026-05-04 14:10:00 CEST, due for 20 min" in run("status").splitlines()


def test_status_of_nothing_says_what_is_missing(work: Clockwork) -> None:
    assert run("status", "--namespace", "other").splitlines()[1:] == [
        "Workers     none is live",
        "Leader      nobody: schedules do not fire",
        "Jobs        0 queued, 0 claimed, 0 running",
        "Ended       0 completed, 0 failed, 0 interrupted in the last 5 min: 0 a minute",
        "Schedules   none",
    ]


def test_status_says_that_the_leader_is_gone_and_what_is_overdue(work: Clockwork) -> None:
    hourly(work)
    work.clock.move_to(at(13, 5))
    lines = run("status").splitlines()
    assert lines[2] == (
        f"Leader      worker {work.worker}, epoch 1, since 2026-05-04 14:00:00 CEST;"
        " its lease ended 64 min ago: schedules do not fire"
    )
    assert lines[-2].endswith(" 2026-05-04 15:00:00 CEST  never         0       0  overdue")
    assert lines[-1] == "    overdue for 5 min: nobody fires it"


def test_status_tells_of_a_paused_namespace_and_of_schedules_gone(work: Clockwork) -> None:
    hourly(work)
    Schedule.objects.update(retired_at=at(12), next_fire=None)
    run("pause", "--namespace")
    lines = run("status").splitlines()
    assert "Paused      since 2026-05-04 14:00:00 CEST: no claims" in lines
    assert lines[-1].split()[-8:] == ["-", "never", "0", "0", "gone", "from", "the", "code"]


def test_status_lists_what_wants_looking_at_where_there_are_many(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_command, "MOST_LISTED", 2)
    for name in ("a", "b", "c", "d"):
        hourly(work, name)
    pause_schedule("d")
    lines = run("status").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [
        *("name", "d", "paused", "a", "…")
    ]
    assert lines[-1] == "  … and 2 more: --json tells of all"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        *((-0.2, "0 s"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "119 min")),
        *((7_200, "2 h"), (172_799, "47 h"), (172_800, "2 days"), (8e6, "92 days")),
    ],
)
def test_how_long(seconds: float, told: str) -> None:
    assert how_long(seconds) == told


def test_status_as_json_is_what_status_returns(work: Clockwork) -> None:
    hourly(work)
    told = json.loads(run("status", "--json"))
    assert told["leader"]["worker"] == str(work.worker)
    assert [each["name"] for each in told["schedules"]] == ["s"]
    assert told["schedules"][0]["next_fire"] == "2026-05-04T13:00:00Z"
    assert told["aggregate"]["total"] == 1


def test_status_without_a_database_is_a_sentence(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any, **options: Any) -> Any:
        raise OperationalError("connection refused\n  is it running?")

    monkeypatch.setattr(status_command, "status", away)
    code, text = refused("status")
    assert code == 1
    assert text.startswith("The database did not answer as it should: ")
    assert "\n" not in text


# Pause and resume


def test_pause_says_how_to_end_it_and_who_has_paused_it(work: Clockwork) -> None:
    hourly(work)
    assert run("pause", "s", "--by", "ann", "--reason", "the disk is full").splitlines() == [
        "The schedule s is paused: it does not fire. What runs goes on.",
        "To end the pause: `durablejobs resume s`.",
    ]
    kept = row("s")
    assert (kept.paused_by, kept.paused_reason) == ("ann", "the disk is full")
    assert run("pause", "s", "--by", "bob") == (
        "The schedule s is paused already, since 2026-05-04 14:00:00 CEST by ann:"
        " the disk is full\n"
    )
    assert row("s").paused_by == "ann"
    assert "goes on: what fell into the pause never fires by itself" in run("resume", "s")
    assert row("s").paused_at is None


def test_pause_notes_the_login_name_unless_told(
    work: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly(work)
    monkeypatch.setenv("LOGNAME", "ann")
    run("pause", "s")
    assert row("s").paused_by == "ann"

    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(scope.getpass, "getuser", unknown)
    run("resume", "s")
    run("pause", "s")
    assert row("s").paused_by == ""


@pytest.mark.parametrize(
    ("arguments", "namespace"), [(["--namespace"], "default"), (["--namespace", "other"], "other")]
)
def test_a_namespace_alone_is_paused_as_a_whole(
    work: Clockwork, arguments: list[str], namespace: str
) -> None:
    hourly(work)
    assert f"The namespace {namespace} is paused: no job is claimed" in run("pause", *arguments)
    assert row("s").paused_at is None
    paused = Namespace.objects.get(pk=namespace)
    assert paused.paused_at is not None
    assert f"The namespace {namespace} is paused already" in run("pause", *arguments)
    run("resume", *arguments)
    paused.refresh_from_db()
    assert paused.paused_at is None


def test_a_schedule_of_another_namespace_is_meant_with_both(work: Clockwork) -> None:
    hourly(work)
    values = Schedule.objects.values().get() | {"id": None, "namespace": "other"}
    Schedule.objects.create(**values)
    run("pause", "s", "--namespace", "other")
    paused = Schedule.objects.filter(paused_at__isnull=False)
    assert paused.get().namespace == "other"
    assert not Namespace.objects.exists()
    run("resume", "s", "--namespace", "other")
    assert not paused.exists()


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_what_is_to_be_steered_must_be_said(work: Clockwork, verb: str) -> None:
    code, text = refused(verb)
    assert code == 2
    assert f"`durablejobs {verb} --namespace`" in text
    assert refused(verb, "--namespace", "")[0] == 2


@pytest.mark.parametrize("verb", ["pause", "resume", "fire"])
def test_an_unknown_schedule_is_refused_with_the_nearest(work: Clockwork, verb: str) -> None:
    hourly(work, "nightly")
    code, text = refused(verb, "nightli")
    assert code == 2
    assert text.endswith("(did you mean 'nightly'?).")


# Fire


def test_fire_tells_the_job(work: Clockwork) -> None:
    hourly(work)
    pause_schedule("s")
    text = run("fire", "s")
    job = Job.objects.get()
    assert text == f"Fired the schedule s: job {job.pk} is queued.\n"
    assert TickClaim.objects.get().outcome == "manual"
    assert row("s").paused_at is not None


def test_fire_is_refused_while_a_run_is_in_flight_unless_forced(work: Clockwork) -> None:
    hourly(work)
    work.go(at(13))
    code, text = refused("fire", "s")
    assert code == 1
    assert "is in flight" in text
    work.clock.advance(1)
    told = json.loads(run("fire", "s", "--force", "--json"))
    assert told["schedule"] == "s"
    assert Job.objects.get(pk=told["job"]).type == told["type"] == "schedule:s"


@pytest.mark.parametrize(
    "tick",
    [
        "2026-05-04T16:00",  # as the schedule's own clock shows it
        "2026-05-04 16:00:00",
        "2026-05-04T14:00:00Z",
        "2026-05-04T14:00+00:00",
        "2026-05-04T23:00+09:00",
    ],
)
def test_fire_makes_up_for_a_missed_tick(work: Clockwork, tick: str) -> None:
    hourly(work)
    work.turn()
    work.go(at(16, 30))
    assert missed("s") == [(at(13), at(16), 4, "downtime")]
    assert run("fire", "s", "--tick", tick).startswith(
        "Made up for the tick of 2026-05-04 16:00:00 CEST of the schedule s: job "
    )
    assert fired("s", "manual") == [at(14)]
    end(jobs("s")[0])
    code, text = refused("fire", "s", "--tick", tick)
    assert code == 1
    assert "was not missed, it was run by hand" in text


@pytest.mark.parametrize("tick", ["soon", "16:00", "2026-13-01"])
def test_a_tick_that_is_no_time_is_wrong_usage(work: Clockwork, tick: str) -> None:
    hourly(work)
    assert f"{tick!r} is no time: write 2026-12-01T02:00" in refused("fire", "s", "--tick", tick)[1]


def test_fire_names_the_ticks_beside_a_time_that_is_none(work: Clockwork) -> None:
    hourly(work)
    code, text = refused("fire", "s", "--tick", "2026-05-04T14:20")
    assert (code, text) == (
        1,
        "tick: 2026-05-04 14:20:00+02:00 is no tick of 's' (cron 0 * * * * Europe/Vienna);"
        " beside it are 2026-05-04 14:00:00+02:00 and 2026-05-04 15:00:00+02:00.",
    )


# Preview


def test_preview_of_an_expression_in_words_and_times_of_both_clocks(work: Clockwork) -> None:
    text = run("preview", "30 2 * * *", "--timezone", "Europe/Vienna", "-n", "2")
    assert text.splitlines() == [
        "30 2 * * *: at 02:30, every day, Europe/Vienna",
        "  Tue 2026-05-05 02:30:00 CEST  2026-05-05 00:30:00 UTC  in 12 h",
        "  Wed 2026-05-06 02:30:00 CEST  2026-05-06 00:30:00 UTC  in 36 h",
        "Look twice:",
        "  on 2026-10-25 02:30 comes twice in Europe/Vienna: fires the first time only",
        "  on 2027-03-28 02:30 does not exist in Europe/Vienna: fires at 03:00",
    ]


def test_preview_in_utc_shows_it_once_and_no_warning_without_cause(work: Clockwork) -> None:
    assert run("preview", "@daily", "--timezone", "UTC", "-n", "1").splitlines() == [
        "0 0 * * *: at 00:00, every day, UTC",
        "  Tue 2026-05-05 00:00:00 UTC  in 12 h",
    ]


@pytest.mark.parametrize(
    ("moment", "mark"),
    [(at(0, day=24), ""), (at(0, day=25), "the clocks go back")],
)
def test_preview_marks_where_the_clocks_change(work: Clockwork, moment: Any, mark: str) -> None:
    work.clock.move_to(moment.replace(month=10) - timedelta(hours=6))
    text = run("preview", "30 2 * * *", "--timezone", "Europe/Vienna", "-n", "1")
    assert text.splitlines()[1].endswith(mark or "in 6 h")


def test_preview_is_ten_fires_unless_told(work: Clockwork) -> None:
    assert len(run("preview", "0 5 * * *", "--timezone", "UTC").splitlines()) == 11


def test_preview_warns_of_likely_slips(work: Clockwork) -> None:
    text = run("preview", "* 5 * * *", "--timezone", "UTC", "-n", "1")
    assert "did you mean `0 5 * * *`?" in text


def test_preview_of_a_schedule_goes_by_its_own_grid(work: Clockwork) -> None:
    schedule("s", every=5_400, run=lambda: None, timezone="UTC")
    work.clock.advance(600)
    lines = run("preview", "s", "-n", "1").splitlines()
    assert lines == [
        "s (every 5400 s): every 90 minutes, UTC",
        "  no worker has taken it yet: its grid is shown as if one did now",
        "  Mon 2026-05-04 13:40:00 UTC  in 90 min",
    ]
    work.start()
    work.clock.advance(1_800)
    pause_schedule("s", by="ann")
    assert run("preview", "s", "-n", "2").splitlines()[1:] == [
        "  paused since 2026-05-04 14:40:00 CEST by ann: it does not fire",
        "  Mon 2026-05-04 13:40:00 UTC  in 60 min",
        "  Mon 2026-05-04 15:10:00 UTC  in 2 h",
    ]


def test_preview_of_a_schedule_keeps_to_its_start_and_end(work: Clockwork) -> None:
    hourly(work, timezone="UTC", start=at(15), end=at(17))
    lines = run("preview", "s").splitlines()
    assert lines[1:3] == [
        "  starts at 2026-05-04 15:00:00 UTC",
        "  ends at 2026-05-04 17:00:00 UTC",
    ]
    assert [line.split()[2] for line in lines[3:]] == ["15:00:00", "16:00:00", "17:00:00"]
    work.clock.move_to(at(18))
    assert run("preview", "s").splitlines()[-1] == "  No more ticks."


def test_preview_as_json(work: Clockwork) -> None:
    hourly(work, cron="30 2 25 10 *")
    told = json.loads(run("preview", "s", "-n", "1", "--json"))
    warnings = told.pop("warnings")
    assert told == {
        "schedule": "s",
        "when": "cron 30 2 25 10 * Europe/Vienna",
        "words": "at 02:30, on day 25, in October",
        "timezone": "Europe/Vienna",
        "notes": [],
        "fires": [
            {
                "local": "2026-10-25T02:30:00+02:00",
                "utc": "2026-10-25T00:30:00+00:00",
                "mark": "overlap",
            }
        ],
    }
    assert [each["code"] for each in warnings] == ["overlap"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1 2 3"], "has 3 fields"),
        (["61 * * * *"], "minute"),
        (["0 0 30 2 *"], "never come"),
        (["@dayly"], "The cron expression '@dayly'"),
        (["nightli"], "No schedule 'nightli' is declared (did you mean 'nightly'?)"),
        (["@daily", "--timezone", "Europe/Wien"], "The time zone is 'Europe/Wien'"),
        (["nightly", "--timezone", "UTC"], "--timezone goes with an expression"),
        (["@daily", "-n", "0"], "no number from 1 to 1,000"),
        (["@daily", "-n", "1001"], "no number from 1 to 1,000"),
    ],
)
def test_preview_of_no_rule_is_wrong_usage(
    work: Clockwork, arguments: list[str], message: str
) -> None:
    hourly(work, "nightly")
    code, text = refused("preview", *arguments)
    assert message in text
    assert code == (2 if "-n" not in arguments else 1)  # the parser's own: 2 on a command line


# Prune


def test_prune_deletes_ticks_beside_jobs_or_alone(work: Clockwork) -> None:
    def old() -> None:
        moment = at(12) - timedelta(days=8)
        columns = {"namespace": "default", "name": "s", "claimed_at": moment, "outcome": "fired"}
        TickClaim.objects.create(scheduled_at=moment, **columns)
        made = make_job(State.COMPLETED)
        Job.objects.filter(pk=made.pk).update(finished_at=at(12) - timedelta(days=40))

    old()
    assert run("prune", "ticks") == "Deleted 1 tick.\n"
    assert run("prune", "jobs") == "Deleted 1 job.\n"
    old()
    assert run("prune") == "Deleted 1 job and 1 tick.\n"
    old()
    assert run("prune", "--older-than", "30d") == "Deleted 1 job and 0 ticks.\n"
    assert run("prune", "ticks", "--older-than", "0") == "Deleted 1 tick.\n"


def test_prune_says_so_where_ticks_are_kept(work: Clockwork, settings: Any) -> None:
    settings.DURABLE_JOBS = {"TICK_RETENTION": 0}
    assert run("prune").splitlines() == [
        "TICK_RETENTION is 0, which keeps all ticks: give --older-than to delete some.",
        "Deleted 0 jobs.",
    ]


# On a command line


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "django", "durablejobs", *arguments],
        env=databases.subprocess_environment(),
        cwd=databases.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["status"], 0, "Workers     none is live"),
        (["status", "--json"], 0, '"schedules": []'),
        (["status", "--nosuch"], 2, "durablejobs status: error: unrecognized"),
        (["status", "--database", "nosuch"], 2, "There is no database 'nosuch'"),
        (["pause"], 2, "Name a schedule"),
        (["pause", "nosuch"], 2, "There is no schedule 'nosuch'"),
        (["resume", "nosuch"], 2, "There is no schedule 'nosuch'"),
        (["fire", "nosuch"], 2, "There is no schedule 'nosuch'"),
        (["fire", "s", "--tick", "soon"], 2, "'soon' is no time"),
        (["preview", "0 2 * * *"], 0, "at 02:00, every day"),
        (["preview", "0 2 * *"], 2, "has 4 fields"),
        (["preview", "@daily", "-n", "0"], 2, "is no number"),
        (["prune", "ticks"], 0, "Deleted 0 ticks."),
    ],
)
def test_exit_codes(arguments: list[str], code: int, told: str) -> None:
    ended = manage(*arguments)
    text = ended.stdout + ended.stderr
    assert (ended.returncode, told in text, "Traceback" in text) == (code, True, False), text


def test_a_fire_that_is_refused_exits_with_1(work: Clockwork) -> None:
    hourly(work)
    declared = """
import sys
import django
from django.core.management import execute_from_command_line
django.setup()
from django_durable_jobs import schedule
schedule("s", cron="0 * * * *", run=lambda: None, timezone="Europe/Vienna")
execute_from_command_line(["manage.py", "durablejobs", "fire", "s"])
"""
    codes = []
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-c", declared],
            env=databases.subprocess_environment(),
            cwd=databases.ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        codes.append(ended.returncode)
    assert codes == [0, 1]
    assert ended.stderr.startswith("CommandError: A run of the schedule 's' is in flight (job ")
    assert Job.objects.count() == 1
