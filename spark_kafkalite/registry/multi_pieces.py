"""Cuts many operations into multis. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from spark_kafkalite.registry.store import MAX_DATA_BYTES, MAX_MULTI_OPERATIONS, Create, Operation, SetData

# One is left for a check beside them.
PIECE_OPERATIONS: Final = MAX_MULTI_OPERATIONS - 1
PIECE_BYTES: Final = MAX_DATA_BYTES - 1024


def pieces(
    operations: Iterable[Operation], *, most_operations: int = PIECE_OPERATIONS, most_bytes: int = PIECE_BYTES
) -> Iterator[list[Operation]]:
    """Cut operations into lists of which each fits into one multi; ``most_bytes`` of paths and data."""
    piece: list[Operation] = []
    size_bytes = 0
    for operation in operations:
        data = operation.data if isinstance(operation, (Create, SetData)) else b""
        operation_bytes = len(operation.path) + len(data)
        if piece and (len(piece) >= most_operations or size_bytes + operation_bytes > most_bytes):
            yield piece
            piece, size_bytes = [], 0
        piece.append(operation)
        size_bytes += operation_bytes
    if piece:
        yield piece
