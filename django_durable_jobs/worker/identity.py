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
    return _process_start(other.pid) != other.process_start


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Return when the process started, in the kernel's ticks since boot; "" where it is gone."""
    # The command's name stands in parentheses and may hold anything, blanks included.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # A zombie (Z) or dead (X) process runs nothing any more.
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
