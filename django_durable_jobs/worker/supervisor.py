"""The supervisor of worker processes: starts them, starts them again, and ends them with itself."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket, socketpair

from .reloading import Code
from .restarts import CLEAN, FAULT, Step, after_end, counted, describe, worst
from .stopping import DRAIN, HURRY, LISTEN_EVERY, Stopper, has_begun, tell
from .terminal import Terminal

# How often it looks whether the code has changed, in seconds.
LOOK_EVERY = 1.0
# How long its workers may take after a second signal, in seconds: they end themselves before.
HURRIED = 10.0


@dataclass(eq=False, slots=True)
class Child:
    """One worker process, or the place of one that is to come."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    line: socket | None = None  # while the process runs; its end tells that the parent is gone
    started_at: float = 0.0  # by the monotonic clock, as is ``due``
    due: float | None = 0.0  # when to start it
    awaits_change: bool = False
    reloading: bool = False  # it was asked to end because its code has changed
    is_new: bool = True  # not started yet, so that its checks are the parent's
    faults: int = 0
    code: int = CLEAN

    @property
    def is_over(self) -> bool:
        return self.process is None and self.due is None and not self.awaits_change

    def tell(self, stage: int) -> None:
        """Have it stop; one that does not run will not be started."""
        self.due, self.awaits_change = None, False
        if self.line is not None:
            tell(self.line, stage)

    def close(self) -> bool:
        """Close the line to the process, which has ended; tell whether that had begun to work."""
        line, self.line = self.line, None
        if line is None:
            return False
        with line:
            return has_begun(line)


class Supervisor:
    """Runs ``command`` in ``processes`` processes until it is asked to stop.

    Each child is told its number and the line (a pair of sockets) over which it hears of the stop
    and says that it has begun. It is not sent signals, and lives in a session of its own: a
    terminal's Ctrl-C comes to the parent alone, and when the parent is gone, however that came
    about, the line's end tells the child to stop.
    With ``code`` the children are drained and started again when it changes.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        stopper: Stopper,
        terminal: Terminal,
        burst: bool = False,
        code: Code | None = None,
    ) -> None:
        self._command = command
        self._stopper = stopper
        self._terminal = terminal
        self._burst = burst
        self._code = code
        self._children = [Child(number) for number in range(1, processes + 1)]
        self._stage = 0
        self._kill_at = float("inf")
        self._look_at = 0.0

    def run(self) -> int:
        """Return, when the last child has ended for good, the worst of their exit codes."""
        try:
            while not all(child.is_over for child in self._children):
                self._pass_on()
                for child in self._children:
                    self._look_after(child)
                self._look_at_code()
                # By looking now and then: a handler for SIGCHLD might be the project's.
                time.sleep(LISTEN_EVERY)
        finally:
            for child in self._children:
                child.close()
        return worst(child.code for child in self._children)

    # Stopping

    def _pass_on(self) -> None:
        stage = min(self._stopper.stage, HURRY)
        if stage > self._stage:
            self._stage = stage
            if stage == DRAIN:
                self._terminal.say(
                    "stopping", "Stopping. Press Ctrl-C again to interrupt what runs."
                )
            else:
                self._kill_at = time.monotonic() + HURRIED
            for child in self._children:
                child.tell(stage)
        if time.monotonic() > self._kill_at:
            for child in self._children:
                if child.process is not None:
                    child.process.kill()

    # Starting

    def _look_after(self, child: Child) -> None:
        if child.process is not None:
            code = child.process.poll()
            if code is not None:
                self._ended(child, code)
        if child.due is not None and time.monotonic() >= child.due:
            self._start(child)

    def _start(self, child: Child) -> None:
        child.due, child.started_at = None, time.monotonic()
        options = ["--skip-checks"] if child.is_new else []
        try:
            child.line, its_end = socketpair()
            with its_end:
                number = its_end.fileno()
                child.process = subprocess.Popen(  # noqa: S603 (this process' own command line)
                    [*self._command, f"--child={child.number}:{number}", *options],
                    pass_fds=[number],
                    start_new_session=True,
                )
            child.is_new = False
        except OSError as error:
            text = f"! {self._name(child)} cannot be started: {error}"
            self._terminal.say("unstartable", text, kind="ERROR", process=child.number)
            self._ended(child, FAULT)

    def _ended(self, child: Child, code: int) -> None:
        pid = child.process.pid if child.process is not None else None
        began = child.close()
        child.process, child.code = None, counted(code, began=began)
        if self._stage:
            return
        if child.reloading:
            child.reloading, child.due = False, 0.0
            return
        ran = time.monotonic() - child.started_at
        reloads = self._code is not None
        then = after_end(
            code,
            ran=ran,
            faults=child.faults,
            burst=self._burst,
            reloads=reloads,
            began=began,
        )
        child.faults = then.faults
        told = f"{self._name(child)} {describe(code)}"
        facts = {"process": child.number, "pid": pid, "code": code}
        match then.step:
            case Step.START:
                child.due = time.monotonic() + then.pause
                when = f"in {then.pause:g} s" if then.pause else "now"
                text = f"{told}: it is started again {when}."
                kind = "WARNING" if then.pause else ""
                self._terminal.say("restart", text, kind=kind, pause=then.pause, **facts)
            case Step.AWAIT_CHANGE:
                child.awaits_change = True
                text = f"{told}: it is started again when its code has changed."
                self._terminal.say("broken", text, kind="ERROR", **facts)
            case Step.END_ALL:
                others = ", nor can the others" * (len(self._children) > 1)
                text = f"{told}: it cannot work like this{others}."
                self._terminal.say("refused", text, kind="ERROR", **facts)
                self._stopper.reach_as_signalled()

    # Reloading

    def _look_at_code(self) -> None:
        if self._code is None or self._stage or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY
        if changed := self._code.changed():
            self._reload(changed)

    def _reload(self, changed: Sequence[Path]) -> None:
        names = ", ".join(map(_shown, changed[:3]))
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        text = f"Changed: {names}{more}. Starting again."
        self._terminal.say("reload", text, files=[str(path) for path in changed])
        for child in self._children:
            if child.process is not None:
                child.reloading = True
                child.tell(DRAIN)
            elif not child.is_over:
                child.due, child.awaits_change, child.faults = 0.0, False, 0

    def _name(self, child: Child) -> str:
        return f"Worker {child.number}" if len(self._children) > 1 else "The worker"


def _shown(path: Path) -> str:
    """Return a path as people know it: from the current folder, if it is in there."""
    here = Path.cwd()
    return str(path.relative_to(here) if here in path.parents else path)
