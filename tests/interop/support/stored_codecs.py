"""Which codecs the batches of a log have, as a producer was told to compress them."""

from __future__ import annotations

from pathlib import Path

from spark_kafkalite.records import kernel
from spark_kafkalite.records.compression import compress
from spark_kafkalite.records.layout import HEADER_BYTES


def stored_codecs(log: Path, told: int) -> set[int]:
    """Return the codecs of a log's batches. One without counts as told where compressing does not make it smaller:
    librdkafka sends such a batch as it is, and a busy machine cuts batches of one record."""
    found = set()
    for segment in log.glob("*.log"):
        data, position = segment.read_bytes(), 0
        for header in kernel.scan_headers(data):
            records = data[position + HEADER_BYTES : position + header.size_bytes]
            is_left = header.codec == 0 and len(compress(told, records)) >= len(records)
            found.add(told if is_left else header.codec)
            position += header.size_bytes
    return found
