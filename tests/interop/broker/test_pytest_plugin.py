"""The fixture ``kafkalite_broker`` in another project's tests: a pytest of its own, in parallel, with nothing left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import processor

TESTS = """
    import json
    import os
    import pathlib
    import pytest
    from spark_kafkalite import Consumer, Producer

    def note(broker):
        at = pathlib.Path(os.environ["NOTES"]) / f"{broker.port}-{broker.pid}"
        at.write_text(json.dumps([broker.pid, broker.port, broker.start_seconds]))

    @pytest.mark.parametrize("number", range(6))
    def test_round_trip(kafkalite_broker, number):
        note(kafkalite_broker)
        with Producer(bootstrap_servers=kafkalite_broker.bootstrap) as producer:
            assert producer.send("orders", b"%d" % number).result(10).offset == 0  # nobody else's records
        with Consumer(bootstrap_servers=kafkalite_broker.bootstrap) as consumer:
            consumer.assign([("orders", 0)])
            consumer.seek_to_beginning()
            assert [record.value for record in consumer.poll(5_000)] == [b"%d" % number]

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
                producer.send("three", b"x", partition=2).result(10)
"""


@pytest.mark.timeout(120)
def test_the_fixture_in_a_parallel_run(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_orders.py").write_text(textwrap.dedent(TESTS), encoding="utf-8")
    # As a user has it: the plug-in comes from the installed package, with no configuration of this checkout.
    done = subprocess.run(
        [
            sys.executable, "-W", "error", "-m", "pytest", "-p", "xdist", "-n", "2", "-p", "no:cacheprovider",
            "-p", "no:randomly", "-q", f"--rootdir={project}", f"--basetemp={tmp_path / 'base'}", str(project),
        ],
        cwd=project, capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "NOTES": str(notes)},
    )  # fmt: skip
    assert re.search(r"1 failed, 8 passed", done.stdout), done.stdout + done.stderr
    assert done.returncode == 1
    seen = [tuple(map(float, path.read_text()[1:-1].split(","))) for path in notes.iterdir()]
    assert len(seen) == 9
    pids = [int(pid) for pid, _, _ in seen]
    assert len(set(pids)) == 9, "a broker of its own for each test"
    left = [pid for pid in pids if _is_broker(pid)]
    assert left == [], "these brokers are still there after the run"
    # Well under a second; the bound leaves room for a machine that is busy with two of them at once, and more.
    start_s = sorted(seconds for _, _, seconds in seen)
    print(f"ready after {start_s[0]:.2f} to {start_s[-1]:.2f} s")
    assert start_s[len(start_s) // 2] < 1.5 * processor.slowness()


def _is_broker(pid: int) -> bool:
    try:
        return b"spark_kafkalite" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
