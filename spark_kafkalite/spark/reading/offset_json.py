"""The JSON in which Spark stores the offsets of a streaming query, in ``offsets/`` of its checkpoint. Pure.

It is that of Spark's own Kafka source, ``{"topic":{"0":9}}``, with keys sorted, because the engine compares offsets as
text. The end offset of a query's first batch also carries the resolved initial offsets,
``{"$initial":{"topic":{"0":5}},"topic":{"0":9}}``: the engine asks for the initial offset again when a first batch is
repeated after a failure, and "latest" means something else by then. ``$`` is illegal in a topic's name.

The JSON of options (``startingOffsets``) allows more than offsets: ``options.offset_options`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import INVALID_OFFSET, SparkConditionError
from spark_kafkalite.spark.reading.offset_ranges import Offsets

_INITIAL_KEY: Final = "$initial"


def to_json(
    offsets: Mapping[TopicPartition, int], initial: Mapping[TopicPartition, int] | None = None
) -> dict[str, Any]:
    """Return the offset that the engine stores, keys in sorted order; ``initial`` only for a query's first batch."""
    stored: dict[str, Any] = {}
    if initial is not None:
        stored[_INITIAL_KEY] = _nested(initial)
    return {**stored, **_nested(offsets)}


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items(), key=lambda item: (item[0].topic, str(item[0].partition))):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def from_json(stored: object) -> tuple[Offsets, Offsets | None]:
    """Return (offsets, initial offsets or None) of what the engine stored.

    Raises SparkConditionError when it is not of that form, as in the checkpoint of another source.
    """
    if not isinstance(stored, dict):
        raise _not_ours(stored)
    initial = stored.get(_INITIAL_KEY)
    return (
        _flat({topic: of_topic for topic, of_topic in stored.items() if topic != _INITIAL_KEY}),
        None if initial is None else _flat(initial),
    )


def _flat(nested: object) -> Offsets:
    if not isinstance(nested, dict):
        raise _not_ours(nested)
    flat: Offsets = {}
    for topic, of_topic in nested.items():
        if not isinstance(of_topic, dict):
            raise _not_ours(nested)
        for partition, offset in of_topic.items():
            if not str(partition).isdecimal() or not isinstance(offset, int) or isinstance(offset, bool):
                raise _not_ours(nested)
            flat[TopicPartition(topic, int(partition))] = offset
    return flat


def _not_ours(stored: object) -> SparkConditionError:
    return SparkConditionError(
        INVALID_OFFSET,
        f"offset={str(stored)[:300]}: not an offset of the Kafka or kafkalite source; the checkpoint belongs to "
        "another source or was edited: use another checkpointLocation, or repair the file under offsets/",
    )
