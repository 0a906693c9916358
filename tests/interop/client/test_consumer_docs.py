"""The programs of docs/consumers.md run as they are printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import PATIENCE_S

DOCS = Path(__file__).resolve().parents[3] / "docs"


def blocks(page: Path) -> list[str]:
    return re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text())


BLOCKS = blocks(DOCS / "consumers.md")
SHORT = [block for block in BLOCKS if "def main" not in block]


@pytest.mark.parametrize("program", SHORT, ids=range(len(SHORT)))
def test_short_programs_run(program: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", registry_port=0) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("events", 1, 1)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("events", b"hello").result(PATIENCE_S)
            # In one pass: the address of a broker may begin as the registry's does.
            addresses = {"127.0.0.1:9092": broker.bootstrap, "127.0.0.1:2181": broker.registry_connect}
            program = re.sub("|".join(map(re.escape, addresses)), lambda found: addresses[found[0]], program)
            process = ChildProcess([sys.executable, "-u", "-c", program], tmp_path, "program")

            # A registry consumer starts at the log's end, so something has to come after it has begun.
            def shown() -> bool:
                producer.send("events", b"hello").result(PATIENCE_S)
                return "b'hello'" in process.stdout_text()

            try:
                process.wait_until(shown, PATIENCE_S, "printing a record")
            finally:
                process.kill()
