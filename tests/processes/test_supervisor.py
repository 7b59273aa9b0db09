"""Several workers under one supervisor: what it starts again, and that they end together."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from django_durable_jobs import enqueue
from django_durable_jobs.models import Job, Worker
from tests import databases
from tests.factories import assert_queue_is_sound
from tests.processes.harness import WorkerProcess, Workers, attempts, freeze, states, until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.once]

STOPS = [signal.SIGTERM, signal.SIGINT]


def gone(pid: int) -> bool:
    """Tell whether a process is over, be it that nobody has collected it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def at_work(supervisor: WorkerProcess, *, number: int) -> list[int]:
    """Wait until so many workers have started in all and registered; return their pids."""

    def registered() -> bool:
        pids = supervisor.children
        return len(pids) >= number and Worker.objects.filter(pid__in=pids).count() == len(pids)

    until(lambda: registered() or supervisor.is_over(), f"{number} workers")
    assert not supervisor.is_over(), supervisor.output
    return supervisor.children


def worker_states() -> set[str]:
    return set(Worker.objects.values_list("state", flat=True))


# What it starts


def test_each_process_is_a_worker_of_its_own_and_the_supervisor_has_no_connection(
    workers: Workers,
) -> None:
    supervisor = workers.start("--processes=3", "--concurrency=2")
    pids = at_work(supervisor, number=3)
    assert len({*pids, supervisor.pid}) == 4
    assert Worker.objects.filter(pid__in=pids, state="running", concurrency=2).count() == 3
    assert {event["process"] for event in supervisor.events("start")} == {1, 2, 3}
    assert supervisor.events("supervise")[0]["processes"] == 3

    process = psutil.Process(supervisor.pid)
    assert process.net_connections("tcp") == []
    assert [file.path for file in process.open_files() if "worker-" not in file.path] == []
    assert process.num_threads() == 1

    jobs = [enqueue("ledger.work", {"seconds": 0.5}) for _ in range(6)]
    until(lambda: states(*jobs) == ["completed"] * 6, "the jobs")
    assert {line.pid for line in workers.lines("start")} <= set(pids)
    assert supervisor.stop() == 0
    assert workers.trouble() == []
    assert_queue_is_sound()


def test_a_burst_ends_when_each_worker_has_nothing_left_and_starts_none_again(
    workers: Workers,
) -> None:
    jobs = [enqueue("ledger.work", {"seconds": 0.05}) for _ in range(20)]
    supervisor = workers.start("--processes=2", "--burst")
    assert supervisor.ended() == 0
    assert states(*jobs) == ["completed"] * 20
    assert len(supervisor.children) == 2
    assert supervisor.events("restart") == []


# What it starts again


def test_a_worker_that_is_killed_is_started_again_and_its_job_is_interrupted(
    workers: Workers,
) -> None:
    supervisor = workers.start("--processes=2", "--concurrency=1", LEASE=60, HEARTBEAT=5)
    at_work(supervisor, number=2)
    job = enqueue("ledger.work", {"seconds": 3_600})
    start = until(lambda: workers.lines("start"), "the start")[0]
    os.kill(start.pid, signal.SIGKILL)
    pids = at_work(supervisor, number=3)
    until(lambda: states(job) == ["interrupted"], "the interruption", seconds=10)
    assert attempts(job) == [(1, "interrupted", "server_restarted_after_claim")]
    numbers = {event["pid"]: event["process"] for event in supervisor.events("start")}
    assert numbers[pids[2]] == numbers[start.pid]
    [restart] = supervisor.events("restart")
    assert (restart["code"], restart["pid"], restart["pause"]) == (-9, start.pid, 1.0)

    after = enqueue("ledger.work")
    until(lambda: states(after) == ["completed"], "a job after that")
    assert supervisor.stop() == 0


def test_the_pauses_grow_while_a_worker_dies_each_time(workers: Workers) -> None:
    for _ in range(3):
        enqueue("ledger.work", {"how": "die"})
    supervisor = workers.start("--processes=1", "--concurrency=1")
    restarts = until(lambda: supervisor.events("restart")[2:], "three deaths") and (
        supervisor.events("restart")
    )
    assert [(event["code"], event["pause"]) for event in restarts] == [(9, 1.0), (9, 2.0), (9, 4.0)]
    # It was down when it was stopped, and for a fault.
    assert supervisor.stop() == 1


def test_a_job_that_exits_with_the_code_of_wrong_usage_ends_its_own_worker_only(
    workers: Workers,
) -> None:
    supervisor = workers.start("--processes=2", "--concurrency=1", "--grace=30")
    at_work(supervisor, number=2)
    lethal, other = enqueue("ledger.work", {"how": "die 2"}), enqueue("ledger.work")
    at_work(supervisor, number=3)
    until(lambda: states(lethal, other) == ["interrupted", "completed"], "both jobs")
    [restart] = supervisor.events("restart")
    assert (restart["code"], restart["pause"]) == (2, 1.0)
    last = enqueue("ledger.work", {"how": "die 2", "seconds": 1})
    until(lambda: last.pk in workers.started(), "the start")
    # Whoever reads the code of all is not told of wrong usage either.
    assert supervisor.stop() == 1


def test_a_worker_that_asks_to_be_restarted_again_and_again_is_slowed(workers: Workers) -> None:
    for _ in range(3):
        enqueue("ledger.work", {"how": "die 75"})
    supervisor = workers.start("--processes=1", "--concurrency=1", RECOVER_UNSTARTED="requeue")
    until(lambda: supervisor.events("restart")[2:], "three restarts")
    restarts = supervisor.events("restart")
    assert [(event["code"], event["pause"]) for event in restarts] == [(75, 0), (75, 1), (75, 2)]
    assert supervisor.stop() == 75


def test_a_worker_that_somebody_stops_is_replaced(workers: Workers) -> None:
    supervisor = workers.start("--processes=1")
    [first] = at_work(supervisor, number=1)
    os.kill(first, signal.SIGTERM)
    at_work(supervisor, number=2)
    assert supervisor.events("restart")[0]["code"] == 0
    assert Worker.objects.get(pid=first).state == "stopped"
    assert supervisor.stop() == 0


def test_a_worker_takes_exactly_max_jobs_and_asks_to_be_restarted(workers: Workers) -> None:
    jobs = [enqueue("ledger.work", {"seconds": 0.1}) for _ in range(8)]
    worker = workers.start("--max-jobs=5", "--concurrency=3", "--grace=0")
    assert worker.ended() == 75
    # Whatever the grace is: nobody is in a hurry.
    assert Counter(states(*jobs)) == {"completed": 5, "queued": 3}
    assert Worker.objects.get().state == "stopped"
    assert_queue_is_sound()


def test_under_a_supervisor_workers_are_renewed_after_max_jobs_until_all_is_done(
    workers: Workers,
) -> None:
    jobs = [enqueue("ledger.work", {"seconds": 0.05}) for _ in range(12)]
    supervisor = workers.start("--processes=2", "--max-jobs=3", "--burst")
    assert supervisor.ended(40) == 0
    assert states(*jobs) == ["completed"] * 12
    taken = Counter(line.pid for line in workers.lines("start"))
    assert max(taken.values()) <= 3
    assert len(taken) >= 4
    assert {event["code"] for event in supervisor.events("restart")} == {75}


# Ending together


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_has_all_workers_finish_what_runs(
    workers: Workers, number: signal.Signals
) -> None:
    supervisor = workers.start("--processes=2", "--concurrency=1")
    at_work(supervisor, number=2)
    jobs = [enqueue("ledger.work", {"seconds": 1.5}) for _ in range(2)]
    until(lambda: len(workers.started()) == 2, "the starts")
    supervisor.signal(number)
    until(lambda: len(supervisor.events("stopping")) == 3, "what they wait for")
    late = enqueue("ledger.work")
    assert supervisor.ended() == 0
    assert states(*jobs, late) == ["completed", "completed", "queued"]
    assert all(gone(pid) for pid in supervisor.children)
    assert worker_states() == {"stopped"}
    assert workers.trouble() == []


def test_a_second_signal_ends_the_grace_of_all_workers(workers: Workers) -> None:
    jobs = [enqueue("ledger.hang"), enqueue("ledger.hang")]
    supervisor = workers.start("--processes=2", "--concurrency=1", "--grace=600")
    until(lambda: len(workers.started()) == 2, "the starts")
    supervisor.signal(signal.SIGTERM)
    until(lambda: len(supervisor.events("stopping")) == 3, "what they wait for")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.ended(15) == 0
    for job in jobs:
        assert attempts(job) == [(1, "interrupted", "scheduler_shutdown")]
    assert worker_states() == {"stopped"}


def test_one_signal_to_every_process_at_once_is_no_second_one(workers: Workers) -> None:
    # As systemd sends it to all that a service has started.
    supervisor = workers.start("--processes=2", "--concurrency=1", "--grace=600")
    pids = at_work(supervisor, number=2)
    jobs = [enqueue("ledger.work", {"seconds": 2}) for _ in range(2)]
    until(lambda: len(workers.started()) == 2, "the starts")
    for pid in (*pids, supervisor.pid):
        os.kill(pid, signal.SIGTERM)
    assert supervisor.ended() == 0
    assert states(*jobs) == ["completed"] * 2


def test_a_worker_that_does_not_end_after_a_second_signal_is_killed(workers: Workers) -> None:
    supervisor = workers.start("--processes=2")
    pids = at_work(supervisor, number=2)
    freeze(pids[0])
    supervisor.signal(signal.SIGTERM)
    until(lambda: supervisor.events("stopping"), "the stop")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.ended(30) == 1
    assert gone(pids[0])
    assert Worker.objects.get(pid=pids[1]).state == "stopped"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Open a pseudo-terminal; return the keyboard's end and the processes' end."""
    keyboard, device = os.openpty()
    yield keyboard, device
    os.close(keyboard)
    os.close(device)


@pytest.mark.parametrize("options", [("--processes=2",), ("--reload",)])
def test_ctrl_c_once_waits_for_what_runs_and_twice_interrupts_it(
    workers: Workers, terminal: tuple[int, int], options: tuple[str, ...]
) -> None:
    keyboard, device = terminal
    supervisor = workers.start(*options, "--grace=600", terminal=device)
    at_work(supervisor, number=1)
    brief = enqueue("ledger.work", {"seconds": 1.5})
    hung = enqueue("ledger.hang")
    until(lambda: len(workers.started()) == 2, "the starts")
    os.write(keyboard, b"\x03")
    until(lambda: states(brief) == ["completed"], "the brief job")
    assert states(hung) == ["running"]
    assert not supervisor.is_over()
    os.write(keyboard, b"\x03")
    assert supervisor.ended(15) == 0
    assert attempts(hung) == [(1, "interrupted", "scheduler_shutdown")]
    assert workers.trouble() == []


def test_when_the_supervisor_is_killed_its_workers_finish_what_runs_and_end(
    workers: Workers,
) -> None:
    supervisor = workers.start("--processes=2", "--concurrency=1", "--grace=30")
    pids = at_work(supervisor, number=2)
    jobs = [enqueue("ledger.work", {"seconds": 1.5}) for _ in range(2)]
    until(lambda: len(workers.started()) == 2, "the starts")
    supervisor.kill()
    late = enqueue("ledger.work")
    until(lambda: all(gone(pid) for pid in pids), "the workers' end")
    assert states(*jobs, late) == ["completed", "completed", "queued"]
    assert worker_states() == {"stopped"}
    assert_queue_is_sound()


# Code


JOBS = """
import sys
from pathlib import Path
from django_durable_jobs import job
from tests import ledger

if Path({refuse!r}).exists():
    sys.exit(2)

@job("shop.version", takes_context=True)
def version(context):
    ledger.write("version", context.job.pk, context.claim_id, {version!r})
"""


class Shop:
    """A project whose code a test edits."""

    def __init__(self, folder: Path) -> None:
        # Its own of everything that is looked at: nobody else edits that meanwhile.
        for package in ("django_durable_jobs", "tests"):
            shutil.copytree(databases.ROOT / package, folder / package)
        self.jobs = folder / "shop" / "jobs.py"
        self.refuse = folder / "refuse"
        self.jobs.parent.mkdir(parents=True)
        (folder / "shop" / "__init__.py").touch()
        (folder / "shop_settings.py").write_text(
            "from tests.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'shop']\n"
            "import os\nDEBUG = 'SHOP_DEBUG' in os.environ\n"
        )
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "shop_settings",
            "PYTHONPATH": str(folder),
            "PYTHONSAFEPATH": "1",  # not from the current folder
            # Compiled code goes by a file's size and whole second.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.edit("one")

    def edit(self, version: str) -> None:
        self.jobs.write_text(JOBS.format(version=version, refuse=str(self.refuse)))

    def breaks(self) -> None:
        self.jobs.write_text("def broken(:\n")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "project")


def version_run(workers: Workers) -> str:
    """Have a job run, and return which version of the code ran it."""
    job = enqueue("shop.version")
    until(lambda: states(job) == ["completed"], "a job of the shop's")
    [note] = [line.note for line in workers.lines("version") if line.job == job.pk]
    return str(note)


def test_edited_code_is_run_once_what_ran_before_is_done(workers: Workers, shop: Shop) -> None:
    supervisor = workers.start("--reload", environment=shop.environment)
    assert version_run(workers) == "one"
    job = enqueue("ledger.work", {"seconds": 3})
    until(lambda: job.pk in workers.started(), "the start")
    shop.edit("two")
    at_work(supervisor, number=2)
    assert attempts(job) == [(1, "completed", "")]
    assert version_run(workers) == "two"
    assert [Path(path).name for path in supervisor.events("reload")[0]["files"]] == ["jobs.py"]
    assert supervisor.stop() == 0
    assert workers.trouble() == []


def test_a_syntax_error_is_waited_out(workers: Workers, shop: Shop) -> None:
    supervisor = workers.start("--reload", "--processes=2", environment=shop.environment)
    at_work(supervisor, number=2)
    shop.breaks()
    until(lambda: len(supervisor.events("broken")) == 2, "the broken starts")
    assert "SyntaxError" in supervisor.output
    assert not supervisor.is_over()
    shop.edit("mended")
    at_work(supervisor, number=4)
    assert version_run(workers) == "mended"
    # Neither started before there was something new to start.
    assert supervisor.events("restart") == []
    assert supervisor.stop() == 0


@pytest.mark.parametrize(
    ("options", "reloads"),
    [((), True), (("--no-reload",), False), (("--burst",), False), (("--processes=1",), True)],
)
def test_code_is_reloaded_under_debug_unless_told_otherwise(
    workers: Workers, shop: Shop, options: tuple[str, ...], reloads: bool
) -> None:
    worker = workers.start(*options, environment=shop.environment | {"SHOP_DEBUG": "1"})
    until(lambda: worker.events("start"), "the start")
    supervisors = worker.events("supervise")
    assert [event["reload"] for event in supervisors] == [True] * reloads
    assert (worker.pid in {event["pid"] for event in worker.events("start")}) is not reloads
    if "--burst" not in options:  # which ends by itself
        worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


def test_wrong_usage_ends_all_workers(workers: Workers, shop: Shop) -> None:
    supervisor = workers.start("--processes=2", environment=shop.environment)
    pids = at_work(supervisor, number=2)
    job = enqueue("ledger.work", {"seconds": 3})
    start = until(lambda: workers.lines("start"), "the start")[0]
    shop.refuse.touch()
    [idle] = set(pids) - {start.pid}
    os.kill(idle, signal.SIGKILL)
    assert supervisor.ended() == 2
    assert states(job) == ["completed"]
    assert Job.objects.filter(state="interrupted").count() == 0


def test_one_signal_ends_the_grace_of_workers_that_end_for_wrong_usage(
    workers: Workers, shop: Shop
) -> None:
    options = ("--processes=2", "--concurrency=1", "--grace=600")
    supervisor = workers.start(*options, environment=shop.environment)
    pids = at_work(supervisor, number=2)
    job = enqueue("ledger.hang")
    start = until(lambda: workers.lines("start"), "the start")[0]
    shop.refuse.touch()
    [idle] = set(pids) - {start.pid}
    os.kill(idle, signal.SIGKILL)
    until(lambda: supervisor.events("stopping"), "the end of all")
    assert [event["code"] for event in supervisor.events("refused")] == [2]
    supervisor.signal(signal.SIGINT)
    assert supervisor.ended(15) == 2
    assert attempts(job) == [(1, "interrupted", "scheduler_shutdown")]


def test_a_job_that_ends_its_worker_is_no_code_that_does_not_start(
    workers: Workers, shop: Shop
) -> None:
    enqueue("ledger.work", {"how": "die 1"})
    supervisor = workers.start("--reload", environment=shop.environment)
    at_work(supervisor, number=2)
    assert supervisor.events("broken") == []
    assert version_run(workers) == "one"
    assert supervisor.stop() == 0
