"""The Arrow schema that readers hand out: that of Spark's own Kafka source.

``key``, ``value`` binary, ``topic`` string, ``partition`` int32, ``offset`` int64, ``timestamp`` in microseconds UTC,
``timestampType`` int32, and ``headers`` as a list of (key, value), null for a record without headers. A record without
a timestamp shows the millisecond before the epoch, as there. The items of the list are called ``element``, as in Spark
and in Parquet. Apart from what makes and reads the columns (:mod:`.arrow`), because code that only plans a read needs
no more than this.
"""

from __future__ import annotations

import pyarrow as pa

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
READ_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP_TYPE),
        pa.field("timestampType", pa.int32()),
    ]
)
READ_SCHEMA_WITH_HEADERS = READ_SCHEMA.append(pa.field("headers", HEADERS_TYPE))
