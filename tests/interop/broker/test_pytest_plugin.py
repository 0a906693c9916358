"""The fixture ``kafkalite_broker`` in another project's tests: a pytest of its own, in parallel, with nothing left.

How long a broker takes to start is measured by ``bench/broker.py`` and ``bench/latency.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.patience import PATIENCE_S

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


def test_the_fixture_in_a_parallel_run(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_orders.py").write_text(
        textwrap.dedent(TESTS).replace("@PATIENCE_S@", str(PATIENCE_S)), encoding="utf-8"
    )
    # As a user has it: the plug-in comes from the installed package, with no configuration of this checkout.
    done = subprocess.run(
        [
            sys.executable, "-W", "error", "-m", "pytest", "-p", "xdist", "-n", "2", "-p", "no:cacheprovider",
            "-p", "no:randomly", "-q", f"--rootdir={project}", f"--basetemp={tmp_path / 'base'}", str(project),
        ],
        cwd=project, capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "NOTES": str(notes)},
    )  # fmt: skip
    assert re.search(r"1 failed, 8 passed", done.stdout), done.stdout + done.stderr
    assert done.returncode == 1
    seen = [tuple(map(float, path.read_text()[1:-1].split(","))) for path in notes.iterdir()]
    assert len(seen) == 9
    pids = [int(pid) for pid, _ in seen]
    assert len(set(pids)) == 9, "a broker of its own for each test"
    left = [pid for pid in pids if _is_broker(pid)]
    assert left == [], "these brokers are still there after the run"


def _is_broker(pid: int) -> bool:
    try:
        return b"spark_kafkalite" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
