"""The programs of docs/consumers.md and of README.md that consume: they run as they are printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.testing.child_process import ChildProcess
from spark_kafkalite.testing.cluster import BrokerProcess

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = re.findall(r"(?ms)^```python\n(.*?)^```", (DOCS / "consumers.md").read_text())


@pytest.mark.parametrize("name", ["at_least_once", "at_most_once"])
def test_the_recipes_are_printed_as_they_are(name: str) -> None:
    assert (DOCS / "examples" / f"{name}.py").read_text() in BLOCKS


@pytest.mark.parametrize("called", ["consumer.subscribe([", "create_message_streams"])
def test_short_programs_run(called: str, tmp_path: Path) -> None:
    (program,) = [block for block in BLOCKS if called in block and "def main" not in block]
    with BrokerProcess(tmp_path / "data", registry_port=0) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("events", 1, 1)
        if called == "consumer.subscribe([":
            with Producer(bootstrap_servers=broker.bootstrap) as producer:
                producer.send("events", b"hello").result(10)
        program = program.replace("127.0.0.1:9092", broker.bootstrap).replace("127.0.0.1:2181", broker.registry_connect)
        process = ChildProcess([sys.executable, "-u", "-c", program], tmp_path, "program")
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            # A registry consumer starts at the log's end, so something has to come after it has begun.
            def shown() -> bool:
                producer.send("events", b"hello").result(10)
                return "b'hello'" in process.stdout_text()

            try:
                process.wait_until(shown, 20, "printing a record")
            finally:
                process.kill()
