from array import array
from typing import Final, final

from spark_kafkalite.model import Headers, Record
from spark_kafkalite.records.assemble import RetainedRecords, SectionFacts
from spark_kafkalite.records.buffers import Buffer, HeaderColumns
from spark_kafkalite.records.layout import BatchHeader

IS_NATIVE: Final[bool]

def read_header(buffer: Buffer, position: int = 0) -> BatchHeader: ...
def scan_headers(buffer: Buffer, position: int = 0, end: int | None = None) -> list[BatchHeader]: ...
def check_crc(buffer: Buffer, position: int, size_bytes: int) -> None: ...
def stamp(
    buffer: bytearray | memoryview,
    position: int,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None = None,
) -> None: ...
def walk_records(
    payload: Buffer,
    header: BatchHeader,
    *,
    keys_required: bool = False,
    earliest_timestamp: int = ...,
    latest_timestamp: int = ...,
) -> int: ...

@final
class Columns:
    count: Final[int]
    offsets: Final[Buffer | None]
    timestamps: Final[Buffer | None]
    timestamp_types: Final[Buffer | None]
    key_offsets: Final[Buffer | None]
    key_data: Final[Buffer]
    key_validity: Final[Buffer | None]
    value_offsets: Final[Buffer | None]
    value_data: Final[Buffer]
    value_validity: Final[Buffer | None]
    headers: Final[HeaderColumns | None]
    next_offset: Final[int]
    def __init__(
        self,
        count: int,
        *,
        offsets: Buffer | None = None,
        timestamps: Buffer | None = None,
        timestamp_types: Buffer | None = None,
        key_offsets: Buffer | None = None,
        key_data: Buffer = b"",
        key_validity: Buffer | None = None,
        value_offsets: Buffer | None = None,
        value_data: Buffer = b"",
        value_validity: Buffer | None = None,
        headers: HeaderColumns | None = None,
        next_offset: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    def offset_at(self, row: int) -> int: ...
    def timestamp_at(self, row: int) -> int: ...
    def timestamp_type_at(self, row: int) -> int: ...
    def key_at(self, row: int) -> bytes | None: ...
    def value_at(self, row: int) -> bytes | None: ...
    def headers_at(self, row: int) -> Headers: ...
    def records(self, topic: str, partition: int, first_row: int, until_row: int) -> list[Record]: ...

@final
class ColumnBuilder:
    def __init__(self, with_headers: bool = True, max_rows: int = ..., max_bytes: int = ...) -> None: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    def add_batch(
        self,
        buffer: Buffer,
        position: int,
        header: BatchHeader,
        payload: Buffer | None = None,
        first_offset: int = 0,
        until_offset: int = ...,
    ) -> int: ...
    def finish(self) -> Columns: ...

@final
class OpenBatch:
    def __init__(self, max_bytes: int) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def append(
        self, timestamp_ms: int, key: Buffer | None, value: Buffer | None, headers: Headers | None = None
    ) -> int: ...
    def build(
        self,
        codec: int = 0,
        level: int | None = None,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytearray: ...

def encode_columns(
    columns: Columns, rows: Buffer | None, first: int, until: int, max_bytes: int, *, now_ms: int
) -> tuple[bytearray, SectionFacts, int]: ...
def murmur2(data: Buffer) -> int: ...
def partition_by_key(columns: Columns, partition_count: int) -> array[int]: ...
def group_rows(partitions: Buffer, partition_count: int) -> list[array[int]]: ...

@final
class KeyMap:
    def __init__(self, buffer_bytes: int, salt: bytes | None = None) -> None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def count(self) -> int: ...
    def digest(self, key: Buffer) -> bytes: ...
    def offset_of(self, key: Buffer) -> int: ...
    def put_records(self, payload: Buffer, header: BatchHeader, first_offset: int = 0) -> int: ...
    def filter_records(
        self,
        payload: Buffer,
        header: BatchHeader,
        first_offset: int = 0,
        until_offset: int = ...,
        *,
        tombstones_until_offset: int = 0,
        delete_horizon_ms: int = -1,
    ) -> RetainedRecords: ...
