"""Hosts lose what they are told to lose and nothing else, and no namespace outlives who made it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.network.hosts import Network, namespaces_of, problem, remove_orphans
from tests.paths import PROJECT
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.root]

# Prints what arrives, and sends it back.
ECHO = """
import socket
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind(("0.0.0.0", 5000))
print("ready", flush=True)
while True:
    data, sender = here.recvfrom(100)
    print(data.decode(), flush=True)
    here.sendto(data, sender)
"""
# Sends a word until it comes back, or often enough; prints what has come back.
ASK = """
import socket, sys
address, word, tries = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.settimeout(0.2)
for _ in range(tries):
    try:
        here.sendto(word, (address, 5000))
        print(here.recv(100).decode())
        break
    except OSError:
        pass
"""
MANY_TRIES = 100
NETWORK = """
import signal
from tests.network.hosts import Network
with Network(["one", "other"]):
    print("made", flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def _root() -> None:
    if (reason := problem()) is not None:
        pytest.skip(reason)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(["asker", "echo", "bystander"]) as running:
        yield running


@pytest.fixture
def echo(network: Network) -> Iterator[subprocess.Popen[str]]:
    command = [*network.prefix("echo"), sys.executable, "-c", ECHO]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def ask(network: Network, word: str, *, host: str = "asker", tries: int = MANY_TRIES) -> str:
    return network.python(host, ASK, network.addresses["echo"], word, str(tries)).strip()


def test_packets_are_lost_one_way(network: Network, echo: subprocess.Popen[str]) -> None:
    assert echo.stdout is not None
    assert ask(network, "before") == "before"
    network.lose("asker", "echo")
    assert ask(network, "lost", tries=2) == ""
    assert ask(network, "beside", host="bystander") == "beside"
    network.heal()
    network.lose("echo", "asker")
    assert ask(network, "unanswered", tries=2) == ""
    network.heal()
    assert ask(network, "after") == "after"
    echo.kill()
    assert set(echo.stdout.read().split()) == {"before", "beside", "unanswered", "after"}


def test_a_host_without_its_cable_reaches_nobody(network: Network, echo: subprocess.Popen[str]) -> None:
    network.unplug("echo")
    assert ask(network, "lost", tries=2) == ""
    network.heal()
    assert ask(network, "after") == "after"


def test_a_failed_set_up_leaves_nothing_behind() -> None:
    before = namespaces_of(os.getpid())
    with pytest.raises(OSError, match="link add"), Network(["first", "with-a-name-that-is-too-long"]):
        pass
    assert namespaces_of(os.getpid()) == before


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_namespace_outlives_its_process(end: signal.Signals) -> None:
    command = [sys.executable, "-c", NETWORK]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "made\n"
            assert len(namespaces_of(process.pid)) == 3
            process.send_signal(end)
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    if end is signal.SIGKILL:
        # It could not: the next one does.
        remove_orphans()
    assert not namespaces_of(process.pid)
