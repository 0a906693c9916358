"""How long the sink waits for brokers before it writes."""

import itertools
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_kafkalite.spark import sink_check
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options import writer_options


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
        thread.join(10)


@pytest.mark.parametrize(("patient", "warns"), [(True, True), (False, False)])
def test_only_a_stream_waits_for_what_does_not_answer_as_a_broker(
    hanging_up: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, patient: bool, warns: bool
) -> None:
    monkeypatch.setattr("spark_kafkalite.client.network.first_contact.GIVE_UP_AFTER_S", 0.0)
    options = writer_options({"kafka.bootstrap.servers": hanging_up, "topic": "t", "kafka.max.block.ms": "1000"})
    with pytest.raises(SparkConditionError) as caught:
        sink_check.check_sink(options, patient=patient)
    line = str(caught.value).splitlines()[-1]
    assert line.startswith(f"[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers={hanging_up}: ")
    assert "kafka.security.protocol" in line
    assert ("the sink cannot reach the brokers" in caplog.text) == warns


def test_a_stream_gives_up_after_the_time_of_its_option_and_names_it() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        options = writer_options({"kafka.bootstrap.servers": address, "topic": "t", "brokersUnreachableTimeout": "1s"})
        with pytest.raises(SparkConditionError) as caught:
            sink_check.check_sink(options, patient=True)
    line = str(caught.value).splitlines()[-1]
    assert f"; tried {address}: " in line
    assert line.endswith(
        "; given up after 1 s (kafka.max.block.ms=1000, see brokersUnreachableTimeout); start the broker, or correct "
        "the address"
    )
