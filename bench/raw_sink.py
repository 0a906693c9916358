"""A Spark sink that does what every sink over a network must: a task's bytes go through a socket into a file.

The values leave as they lie in Arrow's memory, without records, checksums or answers, and a process without any rule
writes them to the page cache. Beside an empty sink this tells what of a write's time is moving bytes on this machine.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.raw_socket import serve

# As much as our broker takes from a socket at once.
_AT_ONCE = 1 << 20
_DONE = b"."


class RawSink(DataSource):
    """``format("raw_socket")`` with the option ``port``."""

    @classmethod
    def name(cls) -> str:
        return "raw_socket"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _Writer(self.options)


class _Writer(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._port = int(options["port"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with socket.create_connection(("127.0.0.1", self._port)) as sock:
            for batch in iterator:
                for column in batch.columns:
                    sock.sendall(_bytes_of(column))
            sock.shutdown(socket.SHUT_WR)
            if sock.recv(1) != _DONE:
                raise ConnectionError("the receiver has not written everything")
        return WriterCommitMessage()


def _bytes_of(column: pa.Array) -> memoryview:
    """Return the bytes of a binary column's values, without a copy."""
    _, offsets, data = column.buffers()
    if data is None:
        return memoryview(b"")
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]]


def _receive(sock: socket.socket, path: Path) -> None:
    memory = memoryview(bytearray(_AT_ONCE))
    with sock, path.open("wb", buffering=0) as file:
        while taken := sock.recv_into(memory):
            file.write(memory[:taken])
        sock.sendall(_DONE)
    path.unlink()


def main() -> None:
    """Write what each connection sends to a file of its own, until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    serve(lambda sock, number: _receive(sock, directory / f"raw-{number}"))


if __name__ == "__main__":
    main()
