"""The facts of files that the driver has written: read back from the files, and bounded in memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_kafkalite.jobs.load.driver_staging import WrittenFile, facts
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.manifests.names import GROUP


def test_facts_are_those_of_the_file_by_partition_over_all_its_row_groups(tmp_path: Path) -> None:
    file = WrittenFile("t@2013-01-01", "part-00003.parquet")
    path = tmp_path / file.path("data")
    path.parent.mkdir(parents=True)
    offsets = [7, 8, 9, 100, 101, 102, 103, 10]
    columns = {
        "value": pa.array([b"x"] * 8),
        "partition": pa.array([0, 0, 0, 1, 1, 1, 1, 0], pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array([5, -1000, 5, 5, -1000, -1000, 5, 5], pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), path, row_group_size=3)
    assert pq.ParquetFile(path).num_row_groups == 3
    where = {GROUP: file.group, "file": file.name, "size": path.stat().st_size}
    assert facts(LocalFiles(tmp_path), "data", file) == [
        where | {"partition": 0, "first": 7, "last": 10, "records": 4, "untimed": 1},
        where | {"partition": 1, "first": 100, "last": 103, "records": 4, "untimed": 2},
    ]
