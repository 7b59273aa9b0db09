"""A TCP proxy between workers and their database that does harm when it is told to.

It runs in a process of its own (`Proxy` starts it and speaks to it, a JSON object a line), so that
what it does to time does not depend on what the test does. It reads along only so far as to know
a COMMIT, and what kind of transaction that ends.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from typing import Any

from tests import databases

# What a transaction has done in whose text this stands.
KINDS = {
    "claim": b"INSERT INTO django_durable_jobs_execution",
    "settle": b"completed_at =",
}
# As psycopg and mysqlclient send it; AUTOCOMMIT is another thing.
COMMIT = re.compile(rb"(Q\0\0\0.|\x03)COMMIT(\0|$)", re.DOTALL)
ROLLBACK = re.compile(rb"(Q\0\0\0.|\x03)ROLLBACK(\0|$)", re.DOTALL)
# Statements that psycopg prepares: their text comes once, then only their name.
PARSE = re.compile(rb"P.{4}(_pg3_\w+)\0([^\0]*)\0", re.DOTALL)
BIND = re.compile(rb"B.{4}\0(_pg3_\w+)\0", re.DOTALL)


class Proxy:
    """The proxy's process, seen from the test: between ``port`` here and ``target``."""

    def __init__(self, target: str) -> None:
        """Start it; ``target`` is a port of this machine, or the path of a socket."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.proxy", target],
            cwd=databases.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=databases.die_with_parent(signal.SIGKILL),
        )
        self.port = int(self._answer()["port"])

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        with self._process as process:
            process.kill()

    def refuse(self) -> None:
        """Reset what is connected, and let nobody in: as a server that is down."""
        self._do("refuse")

    def reset(self) -> None:
        """Reset what is connected; whoever comes again is let in."""
        self._do("reset")

    def swallow(self) -> None:
        """Accept and forward nothing, either way; who was caught by it stays so, healed or not."""
        self._do("swallow")

    def delay(self, seconds: float) -> None:
        """Forward everything so much later, either way."""
        self._do("delay", seconds=seconds)

    def drop_reply(self, kind: str) -> None:
        """Let the next COMMIT of this kind through, swallow the reply to it, and reset."""
        self._do("drop", kind=kind)

    def heal(self) -> None:
        """Be a plain proxy again."""
        self._do("heal")

    @property
    def witnessed(self) -> Counter[str]:
        """How often what happened: "reset", "swallowed", "dropped claim", "lost claim" …

        Lost are COMMITs that went to the server and whose replies did not come back, for whatever
        reason: the server may have gone away.
        """
        return Counter(self._do("tell"))

    def _do(self, what: str, **how: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **how}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


# The process itself


class _Harm:
    """What is done to connections now, what was done, and those that are open."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.port = 0
        self.refuses = self.swallows = False
        self.delay = 0.0
        self.drops = ""  # the kind of COMMIT whose reply is dropped next
        self.witnessed: Counter[str] = Counter()
        self.wires: set[_Wire] = set()
        self._listener: asyncio.Server | None = None

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "refuse":
                await self._listen(False)
                self._reset_all()
            case "reset":
                self._reset_all()
            case "swallow":
                self.swallows = True
                for wire in self.wires:
                    wire.swallow()
            case "delay":
                self.delay = order["seconds"]
            case "drop":
                self.drops = order["kind"]
            case "heal":
                self.swallows, self.delay, self.drops = False, 0.0, ""
                await self._listen(True)
            case "tell":
                return dict(self.witnessed)
        return {"port": self.port}

    async def _listen(self, listens: bool) -> None:
        if self._listener is not None and not listens:
            self._listener.close()
            self._listener = None
        elif self._listener is None and listens:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: _Wire(self).client, "127.0.0.1", self.port
            )
            self.port = self._listener.sockets[0].getsockname()[1]

    def _reset_all(self) -> None:
        for wire in list(self.wires):
            self.witnessed["reset"] += 1
            wire.reset()


class _Side(asyncio.Protocol):
    """One end of a wire: bytes from here are to be carried to the other."""

    def __init__(self, wire: _Wire) -> None:
        self.wire = wire
        self.transport: asyncio.Transport | None = None
        self.early = bytearray()  # what was to go out before there was a connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.early)
        self.wire.made(self)

    def data_received(self, data: bytes) -> None:
        self.wire.carry(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self.wire.reset()

    def send(self, data: bytes) -> None:
        if self.transport is None:
            self.early += data
        elif not self.transport.is_closing():
            self.transport.write(data)

    def reset(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            end: socket.socket = self.transport.get_extra_info("socket")
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


class _Wire:
    """One connection of a client, and the one to the server that it stands for."""

    def __init__(self, harm: _Harm) -> None:
        self.harm = harm
        self.client, self.server = _Side(self), _Side(self)
        self.swallowed = self.over = self.doomed = False
        self.kinds: set[str] = set()  # of what the open transaction has done
        self.asked: set[str] = set()  # kinds of a COMMIT that was not answered yet
        self.prepared: dict[bytes, bytes] = {}
        harm.wires.add(self)

    def made(self, side: _Side) -> None:
        if self.over:
            side.reset()
        elif side is self.client and self.harm.swallows:
            self.swallow()
        elif side is self.client:
            self.connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop, target = asyncio.get_running_loop(), self.harm.target
        try:
            if target.isdigit():
                await loop.create_connection(lambda: self.server, "127.0.0.1", int(target))
            else:
                await loop.create_unix_connection(lambda: self.server, target)
        except OSError:
            self.reset()

    def carry(self, side: _Side, data: bytes) -> None:
        if self.swallowed or self.over:
            return
        if side is self.client:
            self._watch(data)
        elif self.doomed:
            self.reset()
            return
        elif self.asked:
            self.asked = set()
        other = self.server if side is self.client else self.client
        if self.harm.delay:
            asyncio.get_running_loop().call_later(self.harm.delay, other.send, data)
        else:
            other.send(data)

    def _watch(self, data: bytes) -> None:
        self.prepared |= dict(PARSE.findall(data))
        text = data + b"".join(self.prepared.get(name, b"") for name in BIND.findall(data))
        self.kinds |= {kind for kind, mark in KINDS.items() if mark in text}
        if COMMIT.search(data):
            self.asked, self.kinds = self.kinds or {"other"}, set()
            if self.harm.drops in self.asked:
                self.harm.witnessed[f"dropped {self.harm.drops}"] += 1
                self.harm.drops, self.doomed = "", True
        elif ROLLBACK.search(data):
            self.kinds = set()

    def swallow(self) -> None:
        if not self.swallowed:
            self.swallowed = True
            self.harm.witnessed["swallowed"] += 1
            self._count_lost()

    def reset(self) -> None:
        if not self.over:
            self.over = True
            self._count_lost()
            self.harm.wires.discard(self)
            self.client.reset()
            self.server.reset()

    def _count_lost(self) -> None:
        for kind in self.asked:
            self.harm.witnessed[f"lost {kind}"] += 1
        self.asked = set()


async def _serve(target: str) -> None:
    harm = _Harm(target)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    print(json.dumps(await harm.obey({"do": "heal"})), flush=True)
    while order := await orders.readline():
        print(json.dumps(await harm.obey(json.loads(order))), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
