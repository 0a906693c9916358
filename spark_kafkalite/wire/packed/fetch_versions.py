"""What requests and responses of Fetch have in common: its versions, and what names a topic in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.packed.layout import Layout

FETCH: Final = ApiKey.FETCH
FETCH_VERSIONS: Final = range(4, 18)
FETCH_FLEXIBLE: Final = 12
# From here on topics are named by their ids.
FETCH_BY_ID: Final = 13

# What names a topic: its name, or its id of 16 bytes from version 13 on.
Topic = str | bytes

_ID_BYTES: Final = 16


def _read_topic_id(view: memoryview, position: int, field: str) -> tuple[bytes, int]:
    # One that is cut off is found out by whatever comes behind it: a count, always.
    end = position + _ID_BYTES
    return bytes(view[position:end]), end


def is_topic_id(topic: Topic) -> bool:
    return type(topic) is bytes and len(topic) == _ID_BYTES


def _put_topic_id(out: bytearray, topic_id: Topic) -> None:
    if not is_topic_id(topic_id):
        raise ValueError(
            f"a topic's id has {_ID_BYTES} bytes, and from Fetch {FETCH_BY_ID} on it is needed: {topic_id!r}"
        )
    out += topic_id  # type: ignore[arg-type]


def topic_reader(version: int, layout: Layout) -> Callable[[memoryview, int, str], tuple[Topic, int]]:
    return _read_topic_id if version >= FETCH_BY_ID else layout.string


def topic_writer(version: int, layout: Layout) -> Callable[[bytearray, Any], None]:
    return _put_topic_id if version >= FETCH_BY_ID else layout.put_string
