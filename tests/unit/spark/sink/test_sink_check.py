"""How long the sink waits for brokers before it writes."""

import itertools
import math
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import writer_options
from spark_kafkalite.spark.sink import sink_check
from tests.patience import PATIENCE_S


@pytest.fixture
def hanging_up() -> Iterator[str]:
    """The address of what takes connections and ends them, as a broker behind a proxy does while it restarts."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in itertools.count():
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, in no time. After the third there is no time for another one."""
    made: list[float] = []

    def pause(seconds: float) -> None:
        made.append(seconds)
        if len(made) == 3:
            monkeypatch.setattr(sink_check, "_PAUSE_S", math.inf)

    monkeypatch.setattr(sink_check, "time", SimpleNamespace(sleep=pause))
    return made


@pytest.mark.parametrize(("patient", "warns"), [(True, True), (False, False)])
def test_only_a_stream_waits_for_what_does_not_answer_as_a_broker(
    hanging_up: str,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
    caplog: pytest.LogCaptureFixture,
    patient: bool,
    warns: bool,
) -> None:
    monkeypatch.setattr("spark_kafkalite.client.network.first_contact.GIVE_UP_AFTER_S", 0.0)
    options = writer_options({"kafka.bootstrap.servers": hanging_up, "topic": "t", "kafka.max.block.ms": "3600000"})
    with pytest.raises(SparkConditionError) as caught:
        sink_check.check_sink(options, patient=patient)
    line = str(caught.value).splitlines()[-1]
    assert line.startswith(f"[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers={hanging_up}: ")
    assert "kafka.security.protocol" in line
    assert ("the sink cannot reach the brokers" in caplog.text) == warns
    assert pauses == ([0.2] * 3 if patient else [])


def test_a_stream_gives_up_after_the_time_of_its_option_and_names_it(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    monkeypatch.setattr(sink_check, "_ATTEMPT_MS", 1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        options = writer_options({"kafka.bootstrap.servers": address, "topic": "t", "brokersUnreachableTimeout": "1h"})
        with pytest.raises(SparkConditionError) as caught:
            sink_check.check_sink(options, patient=True)
    line = str(caught.value).splitlines()[-1]
    assert f"; tried {address}: " in line
    assert line.endswith(
        "; given up after 3600 s (kafka.max.block.ms=3600000, see brokersUnreachableTimeout); start the broker, or "
        "correct the address"
    )
