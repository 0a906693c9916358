"""Headers of batches, in Python: reading, scanning, the CRC, the fields that a broker stamps. Part of ``batch_py``."""

from __future__ import annotations

from crc32c import crc32c

from spark_kafkalite.records import layout
from spark_kafkalite.records.buffers import Buffer
from spark_kafkalite.records.layout import HEADER_BYTES, BatchHeader


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at ``position``; the rest of the batch need not be there.

    Raises CorruptMessage (code 2) when the header is cut, the magic is not 2, or the length is none that a batch can
    have.
    """
    view = memoryview(buffer).cast("B")
    available = bytes_from(view, position)
    if available < HEADER_BYTES:
        raise layout.too_short(position, available)
    header = BatchHeader._make(layout.HEADER_STRUCT.unpack_from(view, position))
    if header.magic != layout.MAGIC:
        raise layout.bad_magic(position, header.magic)
    check_batch_length(position, header.batch_length)
    return header


def scan_headers(buffer: Buffer, position: int = 0, end: int | None = None) -> list[BatchHeader]:
    """Return the headers of the whole batches between ``position`` and ``end``; a batch that is cut off ends the list.

    Raises CorruptMessage (code 2) at a header that no batch can have.
    """
    view = memoryview(buffer).cast("B")
    available = bytes_from(view, position)
    if end is not None:
        if end < position or end > len(view):
            raise ValueError(f"end {end} is not between position {position} and the buffer's size {len(view)}")
        available = end - position
    headers = []
    while available >= layout.LOG_OVERHEAD:
        # Magic first: the lengths of older versions would only give a confusing error.
        if available > layout.MAGIC_POSITION:
            magic = int.from_bytes(view[position + 16 : position + 17], "big", signed=True)
            if magic != layout.MAGIC:
                raise layout.bad_magic(position, magic)
        batch_length = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
        check_batch_length(position, batch_length)
        size_bytes = layout.LOG_OVERHEAD + batch_length
        if size_bytes > available:
            break
        headers.append(BatchHeader._make(layout.HEADER_STRUCT.unpack_from(view, position)))
        position += size_bytes
        available -= size_bytes
    return headers


def check_crc(buffer: Buffer, position: int, size_bytes: int) -> None:
    """Compare the CRC field of the batch at ``position`` with its bytes.

    Raises CorruptMessage (code 2) when they differ, or when the buffer ends before the batch does.
    """
    view = memoryview(buffer).cast("B")
    available = bytes_from(view, position)
    if size_bytes < HEADER_BYTES:
        raise layout.bad_length(position, size_bytes - layout.LOG_OVERHEAD)
    if size_bytes > available:
        raise layout.cut_batch(position, size_bytes, available)
    stored = int.from_bytes(view[position + layout.CRC_POSITION : position + layout.CRC_START], "big")
    computed = crc32c(view[position + layout.CRC_START : position + size_bytes])
    if stored != computed:
        raise layout.bad_crc(position, stored, computed)


def stamp(
    buffer: bytearray | memoryview,
    position: int,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None = None,
) -> None:
    """Write in place what a broker owns: base offset and leader epoch, and with a time the log append time.

    The CRC covers only the log append time, so it is computed again only with a time. Raises CorruptMessage (code 2)
    when the batch is cut, TypeError when the buffer cannot be written.
    """
    view = memoryview(buffer).cast("B")
    if view.readonly:
        raise TypeError("the batch to stamp must be in a writable buffer")
    header = read_header(view, position)
    available = len(view) - position
    if header.size_bytes > available:
        raise layout.cut_batch(position, header.size_bytes, available)
    view[position : position + 8] = base_offset.to_bytes(8, "big", signed=True)
    view[position + 12 : position + 16] = leader_epoch.to_bytes(4, "big", signed=True)
    if log_append_time_ms is not None:
        attributes = (header.attributes | layout.LOG_APPEND_TIME_BIT) & 0xFFFF
        view[position + 21 : position + 23] = attributes.to_bytes(2, "big")
        view[position + 35 : position + 43] = log_append_time_ms.to_bytes(8, "big", signed=True)
        crc = crc32c(view[position + layout.CRC_START : position + header.size_bytes])
        view[position + 17 : position + 21] = crc.to_bytes(4, "big")


def bytes_from(view: memoryview, position: int) -> int:
    if position < 0 or position > len(view):
        raise ValueError(f"position {position} is not between 0 and the buffer's size {len(view)}")
    return len(view) - position


def check_batch_length(position: int, batch_length: int) -> None:
    if not layout.MIN_BATCH_LENGTH <= batch_length <= layout.MAX_BATCH_BYTES - layout.LOG_OVERHEAD:
        raise layout.bad_length(position, batch_length)
