"""The kernel in Python: the reference for the native twin, and its stand-in where that is not built.

Owns everything that touches the bytes of a record batch: reading and checking headers, walking records, decoding them
to columns, encoding them one by one or from columns. It also stamps the fields that a broker owns, hashes keys as Kafka
does, and decides which records of a batch compaction keeps.
``_kernel.pyx`` has the same names, signatures, results, exceptions and texts; tests/twins compares the two.
Import through ``records.kernel``, which picks one.

Order of checks is part of the contract, because the first fault found names the error. Nothing read from a batch is
trusted: every length is checked against the bytes left before it is used, and no room is made that the bytes at hand
do not justify. Layout: see ``layout``. Columns: see ``buffers``.
"""

from __future__ import annotations

from spark_kafkalite.records.columns_py import Columns
from spark_kafkalite.records.compact_py import KeyMap
from spark_kafkalite.records.decode_py import ColumnBuilder
from spark_kafkalite.records.encode_py import OpenBatch, encode_columns
from spark_kafkalite.records.header_py import check_crc, read_header, scan_headers, stamp
from spark_kafkalite.records.partition_py import group_rows, murmur2, partition_by_key
from spark_kafkalite.records.section_py import walk_records

IS_NATIVE = False

__all__ = [
    "IS_NATIVE",
    "ColumnBuilder",
    "Columns",
    "KeyMap",
    "OpenBatch",
    "check_crc",
    "encode_columns",
    "group_rows",
    "murmur2",
    "partition_by_key",
    "read_header",
    "scan_headers",
    "stamp",
    "walk_records",
]
