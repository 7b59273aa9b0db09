"""Connections at whose other end nobody is: no thread of ours waits for ever."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import Error, connection, connections

from django_durable_jobs.db import is_trouble, own_connections, transaction
from django_durable_jobs.db.wakeups import Listening, anything_due
from tests.chaos.proxy import Proxy
from tests.databases import default_database

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.processes,
    pytest.mark.skipif("connection.vendor == 'sqlite'", reason="a file has no other end"),
]

# The limits of such a lease are about a second; the time-outs of TCP are many minutes.
LEASE = 2.0
SOON = 20.0


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Reach the test database through a proxy, from here on."""
    settings = connection.settings_dict
    port = str(settings["PORT"] or (5432 if connection.vendor == "postgresql" else 3306))
    by_socket = str(settings["HOST"]).startswith("/")
    with (
        Proxy(f"{settings['HOST']}/.s.PGSQL.{port}" if by_socket else port) as proxy,
        default_database({**settings, "HOST": "127.0.0.1", "PORT": str(proxy.port)}),
    ):
        yield proxy
        connections["default"].close()


def fails_soon(act: Callable[[], object]) -> Exception:
    """Return what ``act``, on a thread of its own, raises before long."""
    raised: list[Exception] = []

    def try_it() -> None:
        try:
            act()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=try_it, daemon=True)
    thread.start()
    thread.join(SOON)
    assert raised, "still waits"
    return raised[0]


def ask(own: Any, sql: str = "SELECT 1") -> None:
    with own.cursor() as cursor:
        cursor.execute(sql)


@pytest.mark.parametrize("when", ["before it is opened", "while it is open", "in a transaction"])
def test_a_connection_that_is_swallowed_is_given_up_and_the_next_one_works(
    proxy: Proxy, when: str
) -> None:
    def wait_for_an_answer() -> None:
        with own_connections("default", lease=LEASE) as own:
            try:
                if when == "in a transaction":
                    with transaction("default"):
                        ask(own)
                        proxy.swallow()
                        ask(own)
                if when == "while it is open":
                    ask(own)
                proxy.swallow()
                ask(own)
            finally:
                proxy.heal()
                own.close_if_unusable_or_obsolete()
                ask(own)

    error = fails_soon(wait_for_an_answer)
    assert isinstance(error, Error)
    assert is_trouble(error)
    assert proxy.witnessed["swallowed"]


@contextmanager
def locked(table: str) -> Iterator[None]:
    holder = connections.create_connection("default")
    on_postgres = holder.vendor == "postgresql"
    with holder.cursor() as cursor:
        if on_postgres:
            cursor.execute("BEGIN")
        cursor.execute(f"LOCK TABLE {table}" if on_postgres else f"LOCK TABLES {table} WRITE")
    try:
        yield
    finally:
        holder.close()


def test_a_lock_that_is_not_given_back_is_not_waited_for_and_the_connection_lives() -> None:
    name = "django_durable_jobs_worker"
    with own_connections("default", lease=LEASE) as own:
        ask(own)
        driver = own.connection
        with locked(name), pytest.raises(Error) as caught:
            ask(own, f"DELETE FROM {name}")
        ask(own)
        assert own.connection is driver
    assert is_trouble(caught.value)


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="the driver has no such option")
def test_the_system_gives_up_a_peer_that_acknowledges_nothing(proxy: Proxy) -> None:
    with own_connections("default", lease=30.0) as own:
        own.ensure_connection()
        with socket.socket(fileno=own.connection.fileno()) as end:
            alive = end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            limit = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            end.detach()
    assert (alive, limit) == (1, 12_500)


def test_the_projects_own_connections_keep_their_options(proxy: Proxy) -> None:
    before = {**connection.settings_dict, "OPTIONS": {**connection.settings_dict["OPTIONS"]}}
    with own_connections("default", lease=LEASE) as own:
        ask(own)
        assert own.settings_dict["OPTIONS"] != before["OPTIONS"]
    assert connection.settings_dict == before


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="the others have no LISTEN")
def test_a_listen_that_was_swallowed_is_noticed_by_polling_and_begun_again(proxy: Proxy) -> None:
    heard: list[str] = []
    with own_connections("default", lease=LEASE) as own:
        listening = Listening(own, "a channel", heard.append)
        assert listening.begin()
        assert not listening.begin()
        proxy.swallow()
        with pytest.raises(Error):
            anything_due(own, "default")
        proxy.heal()
        own.close_if_unusable_or_obsolete()
        assert listening.begin()
        with connections.create_connection("default").cursor() as cursor:
            cursor.execute("""NOTIFY "a channel", 'again'""")
            cursor.db.close()
        select.select([listening], [], [], SOON)
        listening.collect()
    assert heard == ["again"]


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="the others have no LISTEN")
def test_a_listen_whose_server_has_gone_says_so(proxy: Proxy) -> None:
    with own_connections("default", lease=LEASE) as own:
        listening = Listening(own, "a channel", [].append)
        listening.begin()
        proxy.reset()
        select.select([listening], [], [], SOON)
        with pytest.raises(Error) as caught:
            listening.collect()
    assert is_trouble(caught.value)
