"""The HTTP server for the lag of queries: what it serves, what it refuses, and its bounds."""

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.spark.watching import lag_endpoint
from spark_kafkalite.spark.watching.lag_endpoint import LagEndpoint
from tests.patience import PATIENCE_S


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_other_paths_are_not_found_and_arguments_do_not_matter(ended: threading.Event) -> None:
    endpoint = LagEndpoint("127.0.0.1", 0, {"/lag": ("text/plain", lambda: "ä")}, ended.is_set)
    base = "http://{}:{}".format(*endpoint.address)
    with urllib.request.urlopen(f"{base}/lag?x=1", timeout=PATIENCE_S) as answer:
        assert (answer.read().decode(), answer.headers["Content-Type"]) == ("ä", "text/plain")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{base}/other", timeout=PATIENCE_S)
    assert refused.value.code == 404
    assert "there are /lag" in refused.value.read().decode()


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"at 127\.0\.0\.1:{port}: .*give another host or port"):
            LagEndpoint("127.0.0.1", port, {}, lambda: True)
    with pytest.raises(ConfigError, match=r"at 127\.0\.0\.1:70000"):
        LagEndpoint("127.0.0.1", 70_000, {}, lambda: True)


def test_few_requests_are_served_at_once_and_silent_ones_are_ended(
    ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    inside = threading.Semaphore(0)

    def page() -> str:
        inside.release()
        assert release.wait(PATIENCE_S)
        return "served"

    endpoint = LagEndpoint("127.0.0.1", 0, {"/lag": ("text/plain", page)}, ended.is_set)
    held = [socket.create_connection(endpoint.address, timeout=PATIENCE_S) for _ in range(lag_endpoint._MOST_REQUESTS)]
    for each in held:
        each.sendall(b"GET /lag HTTP/1.0\r\n\r\n")
    for _ in held:
        assert inside.acquire(timeout=PATIENCE_S)
    with socket.create_connection(endpoint.address, timeout=PATIENCE_S) as refused:
        assert refused.recv(1) == b""
    release.set()
    for each in held:
        assert each.makefile("rb").read().endswith(b"served")
        each.close()
    monkeypatch.setattr(lag_endpoint._LagHandler, "timeout", 0.05)
    with socket.create_connection(endpoint.address, timeout=PATIENCE_S) as silent:
        assert silent.recv(1) == b""
