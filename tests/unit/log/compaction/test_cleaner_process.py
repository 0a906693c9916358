"""The lines that travel between broker and cleaner process, and the throttle."""

from __future__ import annotations

import io
import json
import os

import pytest

from spark_kafkalite.log.compaction import cleaner_process
from spark_kafkalite.log.compaction.clean_job import CleanedGroup, CleanJob, CleanResult
from spark_kafkalite.log.compaction.cleaner_process import (
    Throttle,
    decode_job,
    decode_result,
    encode_job,
    encode_result,
    serve,
)
from spark_kafkalite.log.compaction.plan import SourceSegment
from spark_kafkalite.testing.memory_fs import MemoryFs

JOB = CleanJob(
    "/d/t-0", (SourceSegment(0, 10, -1), SourceSegment(7, 20, 5)), 3, 9, 1, 2, 4, 5, 6, 7, 4096, 10, {5: 6, 7: 8}
)


def test_a_job_and_a_result_arrive_as_they_were_sent() -> None:
    assert decode_job(encode_job(JOB, 12.5).decode()) == (JOB, 12.5)
    result = CleanResult(
        (CleanedGroup(0, (0, 7), 1, 2, 3, 4, 5), CleanedGroup(9, (9,), 1, 0, 0, -1, 9)), 1, 2, 3, 4, 5, -1
    )
    assert decode_result(json.loads(encode_result(result))["result"]) == result


def test_what_cannot_be_cleaned_is_said_and_the_next_job_is_taken() -> None:
    fs, output = MemoryFs(), io.StringIO()
    fs.make_directories("/d/t-0")
    with_no_file = JOB._replace(sources=(SourceSegment(0, 10, -1),), first_dirty_offset=0)
    lines = io.StringIO(encode_job(with_no_file, 1e9).decode() * 2)
    fs.open("/d/t-0/00000000000000000000.log", create=True).pwrite(b"x" * 10, 0)
    serve(lines, output, fs, os.getppid())
    first, second = (json.loads(line) for line in output.getvalue().splitlines())
    assert first == second
    assert first["failed"] == "log"
    assert "00000000000000000000.log" in first["text"]
    assert not [name for name in fs.files() if name.endswith(".cleaned")]


def test_a_disk_that_fails_is_named_with_its_error_number() -> None:
    fs, output = MemoryFs(), io.StringIO()
    serve(io.StringIO(encode_job(JOB, 1e9).decode()), output, fs, os.getppid())
    answer = json.loads(output.getvalue())
    assert (answer["failed"], answer["errno"]) == ("disk", 2)


class SimulatedTime:
    """Stands in for the module ``time``: it passes only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(("rate", "takes_s", "reports"), [(1e308, 0.0, []), (100_000, 0.1, []), (4_000, 2.5, [4, 8])])
def test_the_throttle_holds_the_rate(
    monkeypatch: pytest.MonkeyPatch, rate: float, takes_s: float, reports: list[int]
) -> None:
    clock = SimulatedTime()
    monkeypatch.setattr(cleaner_process, "time", clock)
    output = io.StringIO()
    throttle = Throttle(rate, output, os.getppid())
    for number in range(1, 11):
        throttle.on_bytes(1000)
        # To the rate with every step, and not only at the end.
        assert clock.now_s == pytest.approx(1_000 + takes_s * number / 10)
    assert [json.loads(line) for line in output.getvalue().splitlines()] == [
        {"progress": 1_000 * each} for each in reports
    ]
