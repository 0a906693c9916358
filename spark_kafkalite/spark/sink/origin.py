"""The column in which a job gives topic, partition and offset of each record, for the sink to name refused ones."""

from __future__ import annotations

from typing import Final

ORIGIN: Final = "kafkalite_origin"
ORIGIN_TYPE: Final = "struct<topic:string,partition:int,offset:bigint>"
