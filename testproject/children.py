"""The processes that the demo starts: they end with it, whatever ends it."""

import ctypes
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@contextmanager
def child(command: Sequence[str], *, output: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command for as long as the block lasts; ask it to stop at the end, and wait for it.

    In a session of its own, so that Ctrl-C comes to the demo alone, which then decides.
    """
    with output.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent if LIBC else None,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            wait_for(process, seconds=30)


def wait_for(process: "subprocess.Popen[bytes]", *, seconds: float) -> None:
    """Wait for a process that is about to end; kill it when it does not."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_parent() -> None:
    """Have Linux send SIGTERM when the demo is gone, even by kill -9."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port(wanted: int) -> int:
    """Return the port that is wanted, or any free one where somebody has it."""
    for port in (wanted, 0):
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port is free")


def answers(address: str, process: "subprocess.Popen[bytes]", seconds: float = 20) -> bool:
    """Wait until the server answers; False where it ends first or takes too long."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            opener.open(address, timeout=2).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False
