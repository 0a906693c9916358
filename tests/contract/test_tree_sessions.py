"""Sessions of the served tree, seen from the wire: opening, coming back, ending, expiring, being told."""

from __future__ import annotations

import socket
import struct
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import RegistryProcess
from spark_kafkalite.registry.served.jute import write_buffer, write_int, write_long, write_string, write_strings
from spark_kafkalite.registry.served.server import TreeServer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.wire.frame import framed
from tests.contract.protocol_client import ProtocolClient
from tests.contract.test_tree_protocol import (
    ADD_WATCH,
    AUTH,
    CREATE,
    DELETE,
    EXISTS,
    GET,
    PING,
    SET,
    SET_WATCHES,
    create,
)
from tests.patience import PATIENCE_S, wait_until

CLOSE = -11
NO_NODE, NO_AUTH, AUTH_FAILED, UNIMPLEMENTED, MARSHALLING = -101, -102, -115, -6, -5
CREATED, DELETED, CHANGED = 1, 2, 3


def test_a_session_comes_back_with_its_password_and_its_ephemerals(served: str) -> None:
    first = ProtocolClient(served)
    assert first.ask(CREATE, create("/e", flags=1)).error == 0
    first.close()
    with ProtocolClient(served, session=(first.session_id, first.password)) as again:
        assert (again.session_id, again.password) == (first.session_id, first.password)
        assert struct.unpack_from("!q", again.ask(EXISTS, write_string("/e") + b"\0").body, 44)[0] == first.session_id


@pytest.mark.parametrize("password", [bytes(16), b"", b"x" * 100])
def test_a_wrong_password_or_number_means_expired(served: str, password: bytes) -> None:
    with ProtocolClient(served) as owner:
        for number in (owner.session_id, owner.session_id + 7, -1):
            with ProtocolClient(served, session=(number, password)) as thief:
                assert (thief.session_id, thief.timeout_ms) == (0, 0)
                assert thief.ended()
        assert owner.ask(EXISTS, write_string("/") + b"\0").error == 0


def test_a_session_moves_to_the_newer_connection_and_its_watches_do_not(served: str) -> None:
    with ProtocolClient(served) as other, ProtocolClient(served) as old:
        other.ask(CREATE, create("/w"))
        old.ask(GET, write_string("/w") + b"\1")
        old.ask(ADD_WATCH, write_string("/") + write_int(1))
        with ProtocolClient(served, session=(old.session_id, old.password)) as new:
            assert new.session_id == old.session_id
            assert old.ended()
            other.ask(SET, write_string("/w") + write_buffer(b"") + write_int(-1))
            new.ask(EXISTS, write_string("/w") + b"\0")
            assert new.events == []


def test_what_was_missed_between_two_connections_is_told(served: str) -> None:
    with ProtocolClient(served) as other:
        for name in ("changed", "deleted", "quiet"):
            other.ask(CREATE, create(f"/{name}"))
        first = ProtocolClient(served)
        seen_zxid = first.ask(GET, write_string("/changed") + b"\1").zxid
        first.close()
        other.ask(SET, write_string("/changed") + write_buffer(b"") + write_int(-1))
        other.ask(DELETE, write_string("/deleted") + write_int(-1))
        other.ask(CREATE, create("/created"))
        with ProtocolClient(served, session=(first.session_id, first.password), seen_zxid=seen_zxid) as again:
            watched = write_strings(["/changed", "/deleted", "/quiet"]) + write_strings(["/created", "/none"])
            again.ask(SET_WATCHES, write_long(seen_zxid) + watched + write_strings([]), -8)
            assert sorted(again.events) == [(CREATED, "/created"), (DELETED, "/deleted"), (CHANGED, "/changed")]
            again.events.clear()
            other.ask(SET, write_string("/quiet") + write_buffer(b"") + write_int(-1))
            other.ask(SET, write_string("/changed") + write_buffer(b"") + write_int(-1))
            again.ask(EXISTS, write_string("/") + b"\0")
            assert again.events == [(CHANGED, "/quiet")]


def test_closing_a_session_ends_its_ephemerals_before_it_is_answered(served: str) -> None:
    with ProtocolClient(served) as other, ProtocolClient(served) as owner:
        owner.ask(CREATE, create("/e", flags=1))
        other.ask(EXISTS, write_string("/e") + b"\1")
        assert owner.ask(CLOSE).error == 0
        assert owner.ended()
        assert other.ask(EXISTS, write_string("/e") + b"\0").error == NO_NODE
        assert other.events == [(DELETED, "/e")]
        with ProtocolClient(served, session=(owner.session_id, owner.password)) as late:
            assert late.session_id == 0


def test_a_silent_session_expires_and_one_that_pings_does_not(served: str) -> None:
    with (
        ProtocolClient(served) as other,
        ProtocolClient(served, timeout_ms=3000) as silent,
        ProtocolClient(served, timeout_ms=3000) as pinging,
    ):
        silent.ask(CREATE, create("/silent", flags=1))
        pinging.ask(CREATE, create("/pinging", flags=1))
        while other.ask(EXISTS, write_string("/silent") + b"\0").error == 0:
            assert pinging.ask(PING, xid=-2).error == 0
            time.sleep(0.02)
        assert silent.ended()
        assert other.ask(EXISTS, write_string("/pinging") + b"\0").error == 0
        with ProtocolClient(served, session=(silent.session_id, silent.password)) as late:
            assert late.session_id == 0


def test_a_client_of_another_registry_is_not_let_in(served: str) -> None:
    # Its zxid is one that this registry has not given yet.
    with pytest.raises(ConnectionError):
        ProtocolClient(served, seen_zxid=2**40)


def test_unknown_requests_and_malformed_ones_end_the_connection(served: str) -> None:
    for kind, body, error in ((4711, b"", UNIMPLEMENTED), (GET, b"\0\0", MARSHALLING)):
        with ProtocolClient(served) as peer:
            first = peer.send(EXISTS, write_string("/") + b"\0")
            second = peer.send(kind, body)
            assert (peer.receive().xid, peer.receive()[::2]) == (first, (second, error))
            assert peer.ended()


def test_containers_and_times_to_live_are_refused(served: str) -> None:
    with ProtocolClient(served) as peer:
        for flags in (4, 5, 6):
            assert peer.ask(CREATE, create("/c", flags=flags)).error == UNIMPLEMENTED
        assert peer.ask(19, create("/c", flags=4)).error == UNIMPLEMENTED
        assert peer.ask(21, create("/c", flags=5) + write_long(1000)).error == UNIMPLEMENTED
        assert peer.ask(EXISTS, write_string("/c") + b"\0").error == NO_NODE


def test_a_registry_with_a_digest_serves_only_who_proves_it(tmp_path: Path) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        server = TreeServer(registry, digest="user:secret")
        address = f"127.0.0.1:{server.start('127.0.0.1', 0)}"
        with ProtocolClient(address) as peer:
            assert peer.ask(CREATE, create("/a")).error == NO_AUTH
            assert peer.ask(PING, xid=-2).error == 0
            assert peer.ask(AUTH, write_int(0) + write_string("digest") + write_buffer(b"user:secret"), -4).error == 0
            assert peer.ask(CREATE, create("/a")).error == 0
            with ProtocolClient(address, session=(peer.session_id, peer.password)) as again:
                # To have the session is not to be the user.
                assert again.ask(GET, write_string("/a") + b"\0").error == NO_AUTH
        for scheme, credential in (("digest", b"user:wrong"), ("digest", b"\xff"), ("sasl", b"x"), ("digest", b"user")):
            with ProtocolClient(address) as peer:
                answer = peer.ask(AUTH, write_int(0) + write_string(scheme) + write_buffer(credential), -4)
                assert answer.error == AUTH_FAILED
                assert peer.ended()
        server.close()


def test_a_session_whose_client_does_not_authenticate_ends(tmp_path: Path) -> None:
    def has_ended(peer: ProtocolClient) -> bool:
        try:
            peer.ask(PING, xid=-2)
        except OSError:
            return True
        return False

    with EmbeddedRegistry(tmp_path) as registry:
        server = TreeServer(registry, digest="user:secret")
        address = f"127.0.0.1:{server.start('127.0.0.1', 0)}"
        with ProtocolClient(address) as silent, ProtocolClient(address) as user:
            assert user.ask(AUTH, write_int(0) + write_string("digest") + write_buffer(b"user:secret"), -4).error == 0
            with ProtocolClient(address) as gone:
                pass
            # Not when its time is over: others could open any number of sessions until then.
            wait_until(lambda: gone.session_id not in registry.tree.sessions, "the session ends with its connection")
            with ProtocolClient(address, session=(gone.session_id, gone.password)) as again:
                assert again.session_id == 0
            wait_until(lambda: has_ended(silent), "the end of a session that only says that it lives")
            wait_until(lambda: list(registry.tree.sessions) == [user.session_id], "the others' sessions are forgotten")
            assert user.ask(PING, xid=-2).error == 0
        server.close()


def test_a_registry_whose_disk_fails_stops(tmp_path: Path) -> None:
    # A write beyond this size is an error of the disk, as far as SQLite can tell.
    with RegistryProcess(tmp_path / "registry", command_prefix=("prlimit", "--fsize=400000")) as registry:
        with ProtocolClient(registry.connect) as peer:
            acknowledged = []
            with pytest.raises(OSError):
                for number in range(1000):
                    answer = peer.ask(CREATE, create(f"/n{number}", bytes(5000)))
                    if answer.error == 0:
                        acknowledged.append(number)
        assert 5 < len(acknowledged) < 100
        assert registry._started().wait(PATIENCE_S) == 1
    with RegistryProcess(tmp_path / "registry") as registry, ProtocolClient(registry.connect) as peer:
        for number in acknowledged:
            assert peer.ask(EXISTS, write_string(f"/n{number}") + b"\0").error == 0


def test_a_session_whose_client_has_given_up_is_not_opened(tmp_path: Path) -> None:
    """Clients that ask again and again, because the registry's disk is slow, give it no more to write."""
    with EmbeddedRegistry(tmp_path / "slow") as registry:
        server = TreeServer(registry)
        port = server.start("127.0.0.1", 0)
        sessions, busy = len(registry.tree.sessions), threading.Event()
        waiting: Future[bool] = Future()
        registry.submit(lambda: busy.wait(PATIENCE_S), waiting)
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as impatient:
                hello = write_int(0) + write_long(0) + write_int(6000) + write_long(0) + write_buffer(bytes(16))
                impatient.sendall(framed(hello + b"\0"))
                wait_until(lambda: any(each.opening for each in server._connections), "a session to be asked for")
            wait_until(lambda: not server._connections, "the server to see that its client has gone")
        busy.set()
        assert waiting.result(PATIENCE_S)
        with ProtocolClient(f"127.0.0.1:{port}") as patient:
            assert patient.ask(EXISTS, write_string("/") + b"\0").error == 0
            assert len(registry.tree.sessions) == sessions + 1
        server.close()
