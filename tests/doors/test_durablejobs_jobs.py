"""`manage.py durablejobs` for jobs and loops: cancel, stop, requeue, resolve, sync-loops."""

from __future__ import annotations

import io
import json
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from django_durable_jobs import resolve
from django_durable_jobs.management.subcommands import cancel as cancel_command
from django_durable_jobs.management.subcommands import requeue as requeue_command
from django_durable_jobs.models import Execution, Job, Loop
from django_durable_jobs.states import State
from tests.app.models import Reminder
from tests.factories import assert_queue_is_sound, make_execution, make_job, now, spoil

pytestmark = pytest.mark.django_db(transaction=True)


class Terminal(io.StringIO):
    """Somebody who sits there, and answers; ``meanwhile`` happens while they think."""

    def __init__(self, answer: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(answer)
        self.meanwhile = meanwhile

    def isatty(self) -> bool:
        return True

    def readline(self, *args: Any) -> str:
        self.meanwhile()
        return super().readline(*args)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())


def run(*arguments: Any) -> tuple[int, str]:
    """Call the command; return its exit code and what it printed."""
    out = io.StringIO()
    try:
        call_command("durablejobs", *map(str, arguments), stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


def state_of(job: Job) -> str:
    return str(Job.objects.values_list("state", flat=True).get(pk=job.pk))


# By ids


def test_each_job_is_told_of_with_why_not() -> None:
    queued, running = make_job(type="a"), make_job(State.RUNNING, type="b")
    ended, missing = make_job(State.FAILED, type="c"), uuid.uuid4()
    code, text = run("cancel", queued.pk, running.pk, ended.pk, missing, "x", "--reason", "no use")
    assert code == 1
    assert text.splitlines() == [
        f"not done    {missing}  There is no such job.",
        "not done    x  There is no such job.",
        f"cancelled   {queued.pk}  a",
        f"not done    {running.pk}  It is running: only queued jobs can be cancelled."
        " `durablejobs stop` asks it to stop.",
        f"not done    {ended.pk}  It is failed: only queued jobs can be cancelled.",
        "1 cancelled, 4 not done.",
    ]
    assert [state_of(job) for job in (queued, running, ended)] == ["cancelled", "running", "failed"]
    assert Job.objects.get(pk=queued.pk).cancelled_reason == "no use"
    assert_queue_is_sound()


def test_all_done_is_0() -> None:
    jobs = [make_job(State.FAILED), make_job(State.INTERRUPTED), make_job(State.CANCELLED)]
    code, text = run("requeue", *(job.pk for job in jobs))
    assert (code, text.splitlines()[-1]) == (0, "3 requeued.")
    assert {state_of(job) for job in jobs} == {"queued"}
    assert_queue_is_sound()


def test_stop_asks_what_runs_and_cancels_what_waits() -> None:
    running, queued, done = make_job(State.RUNNING), make_job(), make_job(State.COMPLETED)
    code, text = run("stop", running.pk, queued.pk, done.pk, "--reason", "too slow")
    assert code == 1
    assert text.splitlines()[:2] == [
        f"asked to stop  {running.pk}  test.job",
        f"cancelled   {queued.pk}  test.job",
    ]
    assert "It is completed: only claimed, running or queued jobs can be asked to stop." in text
    running.refresh_from_db()
    assert running.stop_requested_at is not None
    assert running.cancelled_reason == "too slow"
    assert state_of(queued) == "cancelled"


def test_resolve_notes_how_it_is_known_and_who_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    first, second = make_job(State.INTERRUPTED), make_job(State.INTERRUPTED)
    assert run("resolve", first.pk, "--note", "the mail is there")[0] == 0
    assert run("resolve", second.pk, "--note", "n", "--by", "bob")[0] == 0
    said = Execution.objects.order_by("pk").values_list("resolved_by", "resolved_note")
    assert list(said) == [("ann", "the mail is there"), ("bob", "n")]
    assert state_of(first) == state_of(second) == "completed"
    code, text = run("resolve", first.pk)
    assert (code, "--note" in text) == (1, True)  # 2 on a command line: argparse ends it there


def test_ids_may_come_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [make_job() for _ in range(3)]
    lines = f"{jobs[0].pk}\n{jobs[1].pk}  {jobs[0].pk.hex}\n\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    code, text = run("cancel", "-", jobs[2].pk)
    assert (code, text.splitlines()[-1]) == (0, "3 cancelled.")  # each once
    assert run("cancel", "-") == (0, "Nothing to do: standard input named no job.\n")


def test_ids_are_of_any_namespace_unless_one_is_given() -> None:
    job = make_job(namespace="other")
    code, text = run("cancel", job.pk, "--namespace", "default")
    assert (code, text.splitlines()) == (
        1,
        [f"not done    {job.pk}  There is no such job in the namespace default."],
    )
    assert run("cancel", job.pk)[0] == 0


def test_as_json() -> None:
    job, running = make_job(type="a"), make_job(State.RUNNING)
    code, text = run("cancel", job.pk, running.pk, "--json")
    assert code == 1
    assert json.loads(text) == {
        "dry_run": False,
        "done": [{"job": str(job.pk), "type": "a", "was": "queued", "did": "cancelled"}],
        "not_done": [
            {
                "job": str(running.pk),
                "code": "wrong-state",
                "message": "It is running: only queued jobs can be cancelled."
                " `durablejobs stop` asks it to stop.",
            }
        ],
        "not_tried": 0,
        "more": False,
    }


def test_a_dry_run_judges_ids_and_does_nothing() -> None:
    job, done = make_job(State.FAILED), make_job(State.COMPLETED)
    code, text = run("requeue", job.pk, done.pk, "--dry-run")
    assert code == 1
    assert "It is completed: only failed, interrupted or cancelled jobs can be requeued." in text
    assert text.splitlines()[-1] == "1 would be requeued, 1 not. Nothing was done."
    assert state_of(job) == "failed"


def test_a_row_that_cannot_be_read_can_be_steered() -> None:
    job = make_job()
    spoil(job.pk)
    assert run("cancel", job.pk)[0] == 0


def test_an_occurrence_that_its_record_has_left_behind_is_told_as_that() -> None:
    Reminder.objects.create(cron="0 2 * * *")
    job = Job.objects.get()
    run("cancel", job.pk)
    Reminder.objects.update(enabled=False)
    code, text = run("requeue", job.pk)
    assert code == 1
    assert "is an occurrence that its record has moved on from: run the record now instead." in text


# By how they stand


@pytest.mark.parametrize(
    "chosen",
    [
        ["--type", "a"],
        ["--owner", "acme"],
        ["--queue", "slow"],
        ["--since", "90m"],
        ["--since", "2026-01-01T00:00", "--before", "30m"],
    ],
)
def test_jobs_are_chosen_by_how_they_stand(chosen: list[str]) -> None:
    hour = timedelta(hours=1)
    wanted = make_job(
        State.INTERRUPTED, type="a", owner_id="acme", queue="slow", finished_at=now() - hour
    )
    others = [
        make_job(State.INTERRUPTED, finished_at=now() - hour if "--before" in chosen else now()),
        make_job(State.FAILED, type="a", owner_id="acme", queue="slow", finished_at=now() - hour),
    ]
    if chosen[0] == "--since":
        late = now() if "--before" in chosen else now() - 2 * hour
        Job.objects.filter(pk=others[0].pk).update(finished_at=late)
    make_job(State.INTERRUPTED, namespace="other", type="a", owner_id="acme", queue="slow")
    code, text = run("requeue", "--state", "interrupted", *chosen, "--yes")
    assert (code, text.splitlines()[-1]) == (0, "1 requeued.") or code == 0
    queued = Job.objects.filter(state="queued").values_list("pk", flat=True)
    assert list(queued) == [wanted.pk]


def test_what_was_put_in_since_is_what_counts_for_queued_jobs() -> None:
    old = make_job(created_at=now() - timedelta(hours=3))
    new = make_job()
    assert run("cancel", "--since", "1h", "--yes")[0] == 0
    assert (state_of(old), state_of(new)) == ("queued", "cancelled")


def test_cancelled_jobs_can_be_chosen_too() -> None:
    job, other = make_job(State.CANCELLED, type="a"), make_job(State.CANCELLED, type="b")
    assert run("requeue", "--state", "cancelled", "--type", "a", "--yes")[0] == 0
    assert (state_of(job), state_of(other)) == ("queued", "cancelled")


def test_stop_means_what_is_claimed_or_running_unless_told() -> None:
    running, claimed, queued = make_job(State.RUNNING), make_job(State.CLAIMED), make_job()
    assert run("stop", "--type", "test.job", "--yes")[0] == 0
    assert Job.objects.filter(stop_requested_at__isnull=False).count() == 2
    assert [state_of(job) for job in (running, claimed, queued)] == ["running", "claimed", "queued"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["requeue"], "Which jobs?"),
        (["requeue", "--type", "a"], "In which state? Give --state failed or --state interrupted"),
        (["requeue", "x", "--type", "a"], "not both"),
        (["cancel", "--type", "a"], "Nobody can be asked here"),
        (["cancel", "--type", "a", "--json"], "Nobody can be asked here"),
        (["cancel", "--type", "a", "--database", "nosuch"], "There is no database 'nosuch'"),
    ],
)
def test_wrong_usage_is_2_and_nothing_is_done(arguments: list[str], told: str) -> None:
    make_job(type="a")
    code, text = run(*arguments)
    assert code == 2
    assert told in text
    assert Job.objects.get().state == "queued"


def test_it_is_told_what_would_be_done() -> None:
    make_job(State.INTERRUPTED, type="a", owner_id="acme", finished_at=now())
    for _ in range(21):
        make_job(State.INTERRUPTED, type="b")
    code, text = run("requeue", "--state", "interrupted", "--dry-run")
    lines = text.splitlines()
    assert code == 0
    assert lines[0] == "22 jobs of the namespace default: 21 b, 1 a."
    assert "a  owner acme  ended " in lines[1]
    assert lines[-2:] == ["  … and 2 more", "22 would be requeued. Nothing was done."]
    assert not Job.objects.filter(state="queued").exists()


def test_nothing_that_stands_like_that_is_said() -> None:
    assert run("cancel", "--type", "a", "--yes") == (
        0,
        "No job of the namespace default stands like that.\n",
    )


def test_somebody_at_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(type="a")
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    code, text = run("cancel", "--type", "a")
    assert code == 1
    assert text.endswith("Cancel 1 job? [y/N] \nNothing was done.")
    assert state_of(job) == "queued"
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    assert run("cancel", "--type", "a")[0] == 0
    assert state_of(job) == "cancelled"


def test_somebody_who_presses_ctrl_c_at_the_question_has_said_no(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    job = make_job(type="a")
    monkeypatch.setattr(sys, "stdin", Terminal("", interrupt))
    code, text = run("cancel", "--type", "a")
    assert (code, text.splitlines()[-1], state_of(job)) == (1, "Nothing was done.", "queued")


def test_no_more_than_a_limit_at_once_the_oldest_first() -> None:
    jobs = [make_job(State.INTERRUPTED) for _ in range(3)]
    chosen = ["requeue", "--state", "interrupted", "--yes", "--limit", 2]
    code, text = run(*chosen)
    assert code == 0
    assert text.splitlines()[-2:] == [
        "2 requeued.",
        "There are more that stand like that: run it again.",
    ]
    assert [state_of(job) for job in jobs] == ["queued", "queued", "interrupted"]
    assert "There are more" not in run(*chosen)[1]


def test_a_job_that_was_decided_on_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    job, other = make_job(State.INTERRUPTED), make_job(State.INTERRUPTED)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n", lambda: resolve(job.pk, "it was done")))
    code, text = run("requeue", "--state", "interrupted")
    assert code == 1
    assert f"not done    {job.pk}  It is completed: only" in text
    assert text.splitlines()[-1] == "1 requeued, 1 not done."
    assert (state_of(job), state_of(other)) == ("completed", "queued")


def test_a_job_that_ran_again_meanwhile_is_left_to_another_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_job(State.INTERRUPTED)

    def ran_again() -> None:
        Job.objects.filter(pk=job.pk).update(claim_id=uuid.uuid4(), attempts=2, finished_at=now())
        make_execution(Job.objects.get(pk=job.pk))

    monkeypatch.setattr(sys, "stdin", Terminal("y\n", ran_again))
    code, text = run("resolve", "--type", "test.job", "--note", "it was done")
    assert code == 1
    assert "It has moved on since it was chosen: it is interrupted again." in text
    assert state_of(job) == "interrupted"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OperationalError("gone\naway"), "1 requeued, 1 not done, 1 not tried."),
        (KeyboardInterrupt(), "1 requeued, 2 not tried."),
    ],
)
def test_it_ends_where_the_database_does_or_somebody_stops_it(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, told: str
) -> None:
    jobs = [make_job(State.FAILED) for _ in range(3)]
    real = requeue_command.requeue

    def requeue(id: Any, **options: Any) -> Any:
        if id == jobs[1].pk:
            raise error
        return real(id, **options)

    monkeypatch.setattr(requeue_command, "requeue", requeue)
    code, text = run("requeue", *(job.pk for job in jobs))
    assert (code, text.splitlines()[-1]) == (1, told)
    assert [state_of(job) for job in jobs] == ["queued", "failed", "failed"]


def test_a_job_that_is_deleted_meanwhile_is_told_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_job()
    monkeypatch.setattr(cancel_command, "cancel", lambda *args, **options: None)
    code, text = run("cancel", job.pk)
    assert (code, "There is no job with this id" in text) == (1, True)


# Loops


def test_sync_loops_tells_by_model_what_was_changed() -> None:
    Reminder.objects.create(cron="0 2 * * *")
    Reminder.objects.all().update(owner_id="")
    Job.objects.all().delete()
    code, text = run("sync-loops", "testapp.Reminder")
    assert (code, text) == (0, "testapp.Reminder: 1 record changed.\n")
    assert Job.objects.count() == 1
    code, text = run("sync-loops")
    assert {
        "testapp.Reminder: 0 records changed.",
        f"{Loop._meta.label}: 0 records changed.",
    } <= set(text.splitlines())


def test_sync_loops_is_1_where_a_record_cannot_have_a_job() -> None:
    Reminder.objects.create(cron="0 2 * * *")
    Reminder.objects.create(cron="0 3 * * *", refuses="project")
    code, text = run("sync-loops", "testapp.Reminder")
    assert code == 1
    assert "  1 record cannot have a job:" in text
    assert "no project" in text
    told = json.loads(run("sync-loops", "testapp.Reminder", "--json")[1])["models"][0]
    assert (told["model"], told["changed"], told["without_job"]) == ("testapp.Reminder", 0, 1)


def test_a_model_that_holds_no_loop_records_is_refused() -> None:
    code, text = run("sync-loops", "testapp.Remindr")
    assert code == 2
    assert "There is no model of loop records" in text
    assert "testapp.Reminder" in text
    assert run("sync-loops", "testapp.Note")[0] == 2
