"""How fast the record kernel decodes, encodes, appends and hashes, native twin and Python twin side by side.

    python bench/kernel.py [--quick] [--json FILE]

Every figure is the best of several rounds, warm, in one thread: records per second, and for single calls microseconds.
Nothing here touches a socket or a disk; see the other benches for end-to-end figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

from spark_kafkalite.records import batch_py
from spark_kafkalite.records.compression import CODECS, decompress

try:
    from spark_kafkalite.records import _kernel
except ImportError:
    _kernel = None  # type: ignore[assignment]

VALUE = bytes(range(100))


def best_s(work: Callable[[], Any], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def filled_batch(kernel: ModuleType, count: int, *, key: bool, headers: bool, codec: int = 0) -> bytearray:
    batch = kernel.OpenBatch(2**31 - 1)
    for i in range(count):
        batch.append(1_700_000_000_000 + i, b"key-%06d" % i if key else None, VALUE, [("h", b"v")] if headers else None)
    built: bytearray = batch.build(codec)
    return built


def measure(kernel: ModuleType, scale: float, rounds: int) -> dict[str, float]:
    """Return the figures of one twin; ``scale`` is the part of the full number of records to work on."""
    figures: dict[str, float] = {}
    rows_per_batch, batches = 160, max(1, int(400 * scale))

    def decode(data: bytes, with_headers: bool) -> Any:
        builder = kernel.ColumnBuilder(with_headers)
        position = 0
        for header in kernel.scan_headers(data):
            builder.add_batch(data, position, header)
            position += header.size_bytes
        return builder.finish()

    for name, key, headers in (("values", False, False), ("keys", True, False), ("keys+headers", True, True)):
        fetched = bytes(filled_batch(kernel, rows_per_batch, key=key, headers=headers)) * batches
        seconds = best_s(lambda d=fetched, h=headers: decode(d, h), rounds)  # type: ignore[misc]
        figures[f"decode 16 KiB batches, {name}, M/s"] = rows_per_batch * batches / seconds / 1e6
    big = filled_batch(kernel, int(64_000 * scale) or 1, key=False, headers=False)
    big_header = kernel.read_header(big)

    def decode_big() -> Any:
        builder = kernel.ColumnBuilder(False)
        builder.add_batch(big, 0, big_header)
        return builder.finish()

    figures["decode one large batch, M/s"] = big_header.record_count / best_s(decode_big, rounds) / 1e6
    payload = memoryview(big)[61:]
    seconds = best_s(lambda: kernel.walk_records(payload, big_header), rounds)
    figures["walk, M/s"] = big_header.record_count / seconds / 1e6

    columns = decode(bytes(filled_batch(kernel, rows_per_batch, key=True, headers=False)) * batches, True)
    rows = columns.count

    def encode(selection: Any) -> None:
        first = 0
        while first < rows:
            _, _, first = kernel.encode_columns(columns, selection, first, rows, 65536, now_ms=0)

    figures["encode columns, 64 KiB batches, M/s"] = rows / best_s(lambda: encode(None), rounds) / 1e6
    permuted = array("i", range(rows - 1, -1, -1))
    figures["encode columns by index, M/s"] = rows / best_s(lambda: encode(permuted), rounds) / 1e6
    seconds = best_s(lambda: kernel.partition_by_key(columns, 12), rounds)
    figures["partition by key, M/s"] = rows / seconds / 1e6
    partitions = array("i", [row % 12 for row in range(rows)])
    figures["group rows, M/s"] = rows / best_s(lambda: kernel.group_rows(partitions, 12), rounds) / 1e6

    number = int(20_000 * scale) or 1

    def append() -> None:
        batch = kernel.OpenBatch(2**30)
        add = batch.append
        for _ in range(number):
            add(1_700_000_000_000, b"key", VALUE, None)

    figures["append one record, us"] = best_s(append, rounds) / number * 1e6

    def read_records() -> None:
        for record in columns.records("topic", 0, 0, rows):
            record.value  # noqa: B018

    figures["record object and its value, us"] = best_s(read_records, rounds) / rows * 1e6
    batch = filled_batch(kernel, 1, key=False, headers=False)
    figures["read header, us"] = best_s(lambda: [kernel.read_header(batch) for _ in range(1000)], rounds) * 1e3
    return figures


def codecs(kernel: ModuleType, rounds: int) -> dict[str, float]:
    figures = {}
    for name, codec in CODECS.items():
        batch = filled_batch(kernel, 640, key=True, headers=False, codec=codec)
        header = kernel.read_header(batch)
        section = memoryview(batch)[61:]
        seconds = best_s(lambda c=codec, s=section: decompress(c, s, 2**26), rounds)  # type: ignore[misc]
        size = len(decompress(codec, section, 2**26))
        if codec:
            figures[f"decompress {name}, MB/s"] = size / seconds / 1e6
            figures[f"{name} ratio"] = size / (header.size_bytes - 61)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else 15
    python = measure(batch_py, 0.02 if arguments.quick else 0.05, 3)
    native = measure(_kernel, 1, rounds) if _kernel else {}
    print(f"{'':45}{'native':>12}{'python':>12}{'ratio':>10}")
    for name, slow in python.items():
        fast = native.get(name, float("nan"))
        ratio = slow / fast if name.endswith("us") else fast / slow
        print(f"{name:45}{fast:12.3f}{slow:12.3f}{ratio:10.0f}")
    codec_figures = codecs(_kernel or batch_py, rounds)
    for name, figure in codec_figures.items():
        print(f"{name:45}{figure:12.1f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            machine = {"machine": platform.machine(), "python": platform.python_version()}
            json.dump({"native": native, "python": python, "codecs": codec_figures, **machine}, file, indent=1)


if __name__ == "__main__":
    main()
