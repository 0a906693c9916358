"""A Spark source that does what every source over a network must: a file's bytes come through a socket into Arrow's
memory.

A process without any rule sends each task its part of a file by sendfile(2), and the task gives the bytes to Spark as
they arrive, without records, checksums or a copy. Beside an empty source this tells what of a read's time is moving
bytes on this machine.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.empty_source import Shape
from bench.raw_socket import serve
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.spark.reading.read_schema import spark_schema

_COUNT_BYTES = 8


class RawSource(DataSource):
    """``format("raw_socket_source")`` with the options of ``empty_arrow`` and ``port``."""

    @classmethod
    def name(cls) -> str:
        return "raw_socket_source"

    def schema(self) -> StructType:
        return spark_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(Shape.of(self.options), int(self.options["port"]))


@dataclass
class _Reader(DataSourceReader):
    shape: Shape
    port: int

    def partitions(self) -> list[InputPartition]:
        return self.shape.tasks()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        shape = self.shape
        rows = shape.rows_per_batch()
        left = shape.rows // shape.partitions
        ends = pa.array(range(0, (rows + 1) * shape.value_bytes, shape.value_bytes), pa.int32()).buffers()[1]
        others = shape.columns(partition, rows)
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall((left * shape.value_bytes).to_bytes(_COUNT_BYTES, "big"))
            while left > 0:
                taken = min(left, rows)
                memory = pa.allocate_buffer(taken * shape.value_bytes)
                _receive_all(sock, memoryview(memory))
                values = pa.Array.from_buffers(pa.binary(), taken, [None, ends, memory])
                columns = [others[0].slice(0, taken), values, *(column.slice(0, taken) for column in others[2:])]
                yield pa.RecordBatch.from_arrays(columns, schema=READ_SCHEMA)
                left -= taken


def _receive_all(sock: socket.socket, memory: memoryview) -> None:
    while memory:
        taken = sock.recv_into(memory)
        if not taken:
            raise ConnectionError("the sender has closed the connection")
        memory = memory[taken:]


def _send(sock: socket.socket, path: Path) -> None:
    with sock, path.open("rb") as file:
        left = int.from_bytes(sock.recv(_COUNT_BYTES, socket.MSG_WAITALL), "big")
        size = path.stat().st_size
        position = 0
        while left > 0:
            sent = os.sendfile(sock.fileno(), file.fileno(), position, min(left, size - position))
            left -= sent
            position = (position + sent) % size


def main() -> None:
    """Send each connection what it asks for, until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    serve(lambda sock, _: _send(sock, path))


if __name__ == "__main__":
    main()
