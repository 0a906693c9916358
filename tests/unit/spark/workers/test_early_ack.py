"""The command of a task is acknowledged when it is unpickled, so that what the JVM wrote after it leaves at once."""

import fcntl
import os
import pickle
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_kafkalite.spark.workers import early_ack
from spark_kafkalite.spark.workers.early_ack import EarlyAck, jvm_descriptor

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this system has no TCP_QUICKACK")

# <linux/sockios.h>: the bytes that were written to a TCP connection and are not sent yet.
_SIOCOUTQNSD = 0x894B


class Plan(EarlyAck):
    """A part of a command."""

    def __init__(self) -> None:
        self.subject = "subscribe=t"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a TCP connection over the loopback interface: the JVM's, and the Python worker's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        jvm = socket.create_connection(server.getsockname())
        worker, _ = server.accept()
    with jvm, worker:
        yield jvm, worker


@pytest.fixture
def is_worker(monkeypatch: pytest.MonkeyPatch, ends: tuple[socket.socket, socket.socket]) -> None:
    """Make this process a worker at its end of the connection."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "secret")
    monkeypatch.setattr(early_ack, "jvm_descriptor", lambda: ends[1].fileno())


def exchange(jvm: socket.socket, worker: socket.socket, command: bytes) -> int:
    """Play one task, whose command is in two parts; return how many bytes of the second one had to wait."""
    jvm.sendall(command)
    received = b""
    while len(received) < len(command):
        received += worker.recv(65536)
    assert vars(pickle.loads(received)) == {"subject": "subscribe=t"}
    jvm.sendall(b"partition")
    (unsent,) = struct.unpack("i", fcntl.ioctl(jvm, _SIOCOUTQNSD, bytes(4)))
    assert worker.recv(65536) == b"partition"
    worker.sendall(b"rows")
    assert jvm.recv(65536) == b"rows"
    return int(unsent)


@pytest.mark.usefixtures("is_worker")
def test_what_follows_the_command_leaves_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    # From the second task on the worker's kernel takes the connection for an interactive one.
    assert [exchange(*ends, pickle.dumps(Plan())) for _ in range(5)] == [0] * 5


def test_over_unix_sockets_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON_WORKER_FACTORY_SECRET", raising=False)
    monkeypatch.setattr(early_ack, "jvm_descriptor", None)
    assert pickle.loads(pickle.dumps(Plan())).subject == "subscribe=t"


def test_a_closed_connection_is_no_error(
    monkeypatch: pytest.MonkeyPatch, is_worker: None, ends: tuple[socket.socket, socket.socket]
) -> None:
    monkeypatch.setattr(early_ack, "jvm_descriptor", lambda: None)
    early_ack.acknowledge()
    closed = os.dup(ends[1].fileno())
    os.close(closed)
    monkeypatch.setattr(early_ack, "jvm_descriptor", lambda: closed)
    early_ack.acknowledge()


def test_the_lowest_connection_over_loopback_is_the_jvms(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[socket.socket, socket.socket]
) -> None:
    here, there = socket.socketpair()
    datagrams = socket.socket(type=socket.SOCK_DGRAM)
    with here, there, datagrams, socket.create_server(("127.0.0.1", 0)) as listener:
        datagrams.connect(("127.0.0.1", 9))
        others = [each.fileno() for each in (here, there, datagrams, listener)]
        reading, writing = os.pipe()
        with closing(os.fdopen(reading)), closing(os.fdopen(writing, "w")):
            for listed in (others, [*others, reading, ends[1].fileno()]):
                monkeypatch.setattr(os, "listdir", lambda path, listed=listed: map(str, listed))
                jvm_descriptor.cache_clear()
                assert jvm_descriptor() == (None if listed == others else ends[1].fileno())
    jvm_descriptor.cache_clear()
    # They are PySpark's or another library's, and stay open.
    assert all(each.getpeername() for each in ends)
