"""The fixtures in another project's tests: a pytest of its own, in parallel, with nothing left. docs/testing.md, too.

How long a broker takes to start is measured by ``bench/broker.py`` and ``bench/latency.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until

TESTS = """
    import json
    import os
    import pathlib
    import pytest
    from spark_kafkalite import Consumer, Producer

    PATIENCE_S = @PATIENCE_S@

    def note(broker):
        at = pathlib.Path(os.environ["NOTES"]) / f"{broker.port}-{broker.pid}"
        at.write_text(json.dumps([broker.pid, broker.port]))

    @pytest.mark.parametrize("number", range(6))
    def test_round_trip(kafkalite_broker, number):
        note(kafkalite_broker)
        with Producer(bootstrap_servers=kafkalite_broker.bootstrap) as producer:
            assert producer.send("orders", b"%d" % number).result(PATIENCE_S).offset == 0  # no records of another test
        with Consumer(bootstrap_servers=kafkalite_broker.bootstrap) as consumer:
            consumer.assign([("orders", 0)])
            consumer.seek_to_beginning()
            assert [record.value for record in consumer.poll(int(PATIENCE_S * 1000))] == [b"%d" % number]

    def test_a_broker_that_the_test_kills(kafkalite_broker):
        note(kafkalite_broker)
        kafkalite_broker.kill()

    def test_a_broker_of_a_failing_test(kafkalite_broker):
        note(kafkalite_broker)
        assert not "seen"

    class TestSettings:
        @pytest.fixture
        def kafkalite_broker_settings(self):
            return {"num.partitions": 3}

        def test_own_settings(self, kafkalite_broker):
            note(kafkalite_broker)
            with Producer(bootstrap_servers=kafkalite_broker.bootstrap) as producer:
                producer.send("three", b"x", partition=2).result(PATIENCE_S)
"""


def run_pytest(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests in a directory as a user does: with the installed plug-in, without this checkout's settings."""
    command = (sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-q")
    return subprocess.run(
        [*command, *arguments, f"--rootdir={project}", f"--basetemp={project.parent / 'base'}", str(project)],
        cwd=project, capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "NOTES": str(project.parent / "notes")},
    )  # fmt: skip


def test_the_fixture_in_a_parallel_run(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_orders.py").write_text(
        textwrap.dedent(TESTS).replace("@PATIENCE_S@", str(PATIENCE_S)), encoding="utf-8"
    )
    done = run_pytest(project, "-p", "xdist", "-n", "2")
    assert re.search(r"1 failed, 8 passed", done.stdout), done.stdout + done.stderr
    assert done.returncode == 1
    seen = [tuple(map(float, path.read_text()[1:-1].split(","))) for path in notes.iterdir()]
    assert len(seen) == 9
    pids = [int(pid) for pid, _ in seen]
    assert len(set(pids)) == 9, "a broker of its own for each test"
    left = [pid for pid in pids if _is_broker(pid)]
    assert left == [], "these brokers are still there after the run"


def test_the_page_without_spark_runs_as_it_is_printed(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "testing.md").read_text()
    blocks = [block for block in re.findall(r"(?ms)^```python\n(.*?)^```", page) if "spark." not in block]
    assert [block.count("def test_") for block in blocks] == [1, 0, 1]
    blocks[1] += "\n\ndef test_it(broker, topic):\n    assert broker.running and topic.startswith('orders-')\n"
    project = tmp_path / "project"
    project.mkdir()
    for number, block in enumerate(blocks):
        (project / f"test_{number}.py").write_text(block)
    done = run_pytest(project)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("records") / "data") as running:
        yield running


def send(broker: BrokerProcess, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
    with Producer(broker.client_settings) as producer:
        for value in values:
            producer.send(topic, value, partition=partition).result(PATIENCE_S)


def test_the_options_for_spark_are_the_client_settings(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", port=9092, tls=True)
    options = broker.spark_options
    assert options["kafka.bootstrap.servers"] == "127.0.0.1:9092" and options["kafka.security.protocol"] == "SSL"
    assert {name.removeprefix("kafka."): value for name, value in options.items()} == broker.client_settings


def test_all_records_of_a_topic_come_in_order(broker: BrokerProcess) -> None:
    with Admin(broker.client_settings) as admin:
        admin.create_topic("ordered", 2)
        send(broker, "ordered", [b"%d" % number for number in range(700)], 1)
        send(broker, "ordered", [b"first"])
        admin.delete_records({("ordered", 1): 1})
    assert [each.value for each in broker.records("ordered")] == [b"first", *(b"%d" % each for each in range(1, 700))]


def test_records_that_arrive_later_are_waited_for(broker: BrokerProcess) -> None:
    later = threading.Timer(0.2, send, (broker, "later", [b"one", b"two"]))
    with pytest.raises(UnknownTopicOrPartition, match="later"):
        broker.records("later")
    later.start()
    assert [record.value for record in broker.records("later", at_least=2, timeout_s=PATIENCE_S)] == [b"one", b"two"]
    later.join()
    long = b"x" * 100
    send(broker, "later", [long])

    def refusal() -> str:
        with pytest.raises(TimeoutError) as refused:
            broker.records("later", at_least=4, timeout_s=1)
        return str(refused.value)

    # A slow host does not read three records in a second.
    shown = f"3 records of topic later were read, and not 4; the last values are: b'one', b'two', {b'x' * 40!r}..."
    wait_until(lambda: shown in refusal(), "all records to be read")


def _is_broker(pid: int) -> bool:
    try:
        return b"spark_kafkalite" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
