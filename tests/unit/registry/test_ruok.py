"""What is said of servers that open no session, by what they answer to "ruok"."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_kafkalite.registry import ruok


@contextlib.contextmanager
def answering(text: bytes, *, at_once: bool = True) -> Iterator[tuple[str, int]]:
    """Serve one connection: with ``text`` for "ruok", or with nothing until the block ends."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connected, _ = listener.accept()
            with connected:
                if at_once:
                    assert connected.recv(100) == ruok.WORD
                    connected.sendall(text)
                else:
                    done.wait()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield "127.0.0.1", listener.getsockname()[1]
        finally:
            done.set()
            thread.join()


def test_a_full_disk_is_named() -> None:
    with answering(ruok.answer("database or disk is full").encode()) as (host, port):
        text = ruok.why_no_session([("127.0.0.1", 1), (host, port)], 18)
    assert text == (
        f"the registry at {host}:{port} has opened no session within 18 s, because its disk has no room "
        "(database or disk is full); free space on that disk"
    )


@pytest.mark.parametrize(
    "said", [b"imok", b"ruok is not executed because it is not in the whitelist.", b"\xff" * 2000, b""]
)
def test_a_server_that_takes_connections_is_not_called_away(said: bytes) -> None:
    with answering(said) as (host, port):
        text = ruok.why_no_session([(host, port), ("127.0.0.1", 1)], 0.5)
    assert text.startswith(f"no session was opened within 0.5 s at {host}:{port}, though connections are accepted")


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    with answering(b"", at_once=False) as (host, port):
        assert "though connections are accepted" in ruok.why_no_session([(host, port)], 0.5)


def test_where_nobody_listens_no_zookeeper_answers() -> None:
    text = ruok.why_no_session([("127.0.0.1", 1), ("::1", 1)], 0.7)
    assert text == ("no ZooKeeper answers at 127.0.0.1:1,::1:1 within 0.7 s; start it, or correct zookeeper.connect")


def test_an_answer_is_bounded() -> None:
    assert ruok.answer(None) == "imok"
    assert len(ruok.answer("x" * 10_000)) == 512
