"""The clients, the reading of files and the judge together, where they must find nothing: one broker of ours that is
killed. ``test_apache_rows`` has them on Apache Kafka."""

from __future__ import annotations

import time
from pathlib import Path

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.chaos.final_logs import leftovers_of, logs_of
from tests.chaos.history import Fault, HistoryWriter
from tests.chaos.judge import judge_files
from tests.chaos.workload import Workload, make_topic
from tests.seeds import SOAK

# Of each producer, before and after the kill.
_RECORDS = 70


def test_a_broker_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker, HistoryWriter(tmp_path / "history.jsonl") as history:
        place = make_topic(broker.bootstrap, {1: broker.bootstrap}, "rows", history, replicas=1)
        workload = Workload(place, tmp_path, rate=60.0)
        try:
            workload.start()
            begun = time.monotonic()
            workload.wait_for_more(_RECORDS)
            broker.kill()
            broker.start()
            asked = {"longest_gap_s": 10, "isr_within_s": 10, "acks_at_least": _RECORDS}
            ended = time.monotonic()
            workload.wait_for_more(_RECORDS)
            history.note(Fault(name="kill", begun=begun, ended=ended, settle_s=time.monotonic() - ended, **asked))
            workload.finish()
        finally:
            workload.stop()
        broker.stop()
        history.note(*logs_of(1, broker.data_dir, {place.topic_id: place.topic}))
    verdict = judge_files([history.path], asks_for_times=SOAK)
    assert not verdict.violations, verdict.text()
    # It has looked at something.
    assert verdict.figures["acknowledged"] > 500 and verdict.figures["shown"] > 1500, verdict.text()


def test_a_line_of_a_checkpoint_without_its_log_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "here-0").mkdir()
    (tmp_path / "replication-offset-checkpoint").write_text("0\n2\nhere 0 5\naway 1 7\n")
    (left,) = leftovers_of(1, tmp_path)
    assert left.path == "replication-offset-checkpoint: away 1"
