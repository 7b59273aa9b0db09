"""Who this process is, and whether another worker's process on this host is gone."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A process as its worker's row names it; unknown parts are ""."""

    host: str
    pid: int
    boot_id: str
    pid_namespace: str
    process_start: str


def this_process() -> Identity:
    """Return the identity of this process."""
    return Identity(
        host=socket.gethostname()[:255],
        pid=os.getpid(),
        boot_id=_boot_id(),
        pid_namespace=_pid_namespace(),
        process_start=_process_start(os.getpid()),
    )


def is_gone(other: Identity) -> bool:
    """Tell whether ``other`` is proven to be gone.

    A pid is evidence only where the machine's boot, the pid namespace and the start of the
    process are known, are this machine's and tell the process from a later one with its number:
    containers share host names and pids, and pids are used again. Anything else is not proof.
    """
    here = this_process()
    known = all((other.boot_id, other.pid_namespace, other.process_start, here.boot_id))
    if not known or (other.host, other.pid_namespace) != (here.host, here.pid_namespace):
        return False
    if other.boot_id != here.boot_id:
        # The same host name booted again; but another machine may bear the name as well.
        return False
    start = _process_start(other.pid)
    if start:
        return start != other.process_start
    # Nothing to be read may mean that another user's processes are hidden from this one.
    return _has_ended(other.pid)


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    # Still there for its parent to collect, but it runs nothing any more.
    return _state(pid) in ("Z", "X")


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Return when a live process started, in the kernel's ticks since boot; "" if unknown."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 and fields[0] not in ("Z", "X") else ""


def _state(pid: int) -> str:
    """Return the kernel's letter for the process' state, "" if unknown."""
    return next(iter(_stat(pid)), "")


def _stat(pid: int) -> list[str]:
    # The command's name stands in parentheses and may hold anything, blanks included.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
