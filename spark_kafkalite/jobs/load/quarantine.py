"""Records that cannot be decoded: counted, bounded, and kept as lines of JSON under ``_kafkalite/quarantine``.

A task that finds such a record (``formats/decoding.py``) stages it as one document with all its parts, next to the
files. If a run has such records, and no more than it may have, the documents become a file for each topic. The manifest
names it like the others. Keys and values are in base64. The reason names the field, its value and the expected type.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import QUARANTINE, FilePart, PublishedFile, staging_path
from spark_kafkalite.manifests.names import GROUP, TIMESTAMP_REASON, directory_name, shared_file_name, staged_topic
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_kafkalite.jobs.formats.mismatch import Explainer

_BOUND: Final = re.compile(r"([0-9]+)|([0-9]+(?:\.[0-9]+)?)%", re.ASCII)
_OF: Final = "topic string, partition int, offset long, reason string"


@dataclass(frozen=True, slots=True)
class MaxQuarantined:
    """How many records of a run may be quarantined: so many, or that part in percent of all. By default none."""

    records: int = 0
    percent: float | None = None

    @classmethod
    def parse(cls, text: str) -> MaxQuarantined:
        """Return the limit of a text ``N`` or ``P%``. Raises ValueError for anything else."""
        found = _BOUND.fullmatch(text.strip())
        if found is None or float(found[2] or 0) > 100:
            raise ValueError(f"{text!r} is neither a number of records such as 100 nor a part of them such as 0.1%")
        return cls(int(found[1])) if found[1] is not None else cls(percent=float(found[2]))

    def allows(self, quarantined: int, records: int) -> bool:
        """Return whether so many of all the ``records`` are few enough."""
        if self.percent is not None:
            return quarantined * 100 <= self.percent * records
        return quarantined <= self.records

    def __str__(self) -> str:
        return f"{self.records}" if self.percent is None else f"{self.percent:g}%"


NONE_QUARANTINED: Final = MaxQuarantined()


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The quarantined records of a run, by partition, and the first of them as text."""

    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    first: str = ""

    @property
    def records(self) -> int:
        return sum(self.by_partition.values())


def check_quarantined(found: Quarantined, records: int, bound: MaxQuarantined) -> None:
    """Raise AuditError where a run has more than it may have; ``records`` are all that it read."""
    if not bound.allows(found.records, records):
        fix = "" if TIMESTAMP_REASON in found.first else "fix --value or --value-schema, or "
        raise AuditError(
            f"{found.records} of {records} records cannot be decoded, and --max-quarantined is {bound}; the first is "
            f"{found.first}; nothing was published: read it with kafkalite consume, {fix}"
            "run with a higher --max-quarantined, which puts such records under _kafkalite/quarantine"
        )


@dataclass(frozen=True, slots=True)
class Explained:
    """Puts into documents why their values do not fit the schema, if that is known. Sent to Spark's workers."""

    explain: Explainer

    def __call__(self, documents: pa.Array) -> pa.Array:
        """Return the documents, JSON texts, with their reasons."""
        import pyarrow as pa

        return pa.array([self.document(each) for each in documents.to_pylist()], pa.string())

    def document(self, text: str) -> str:
        document = json.loads(text)
        reason = self._reason(document)
        return text if reason is None else json.dumps(document | {"reason": reason}, ensure_ascii=False)

    def _reason(self, document: Mapping[str, Any]) -> str | None:
        from spark_kafkalite.jobs.formats.decoding import EXPLAINED_REASONS

        if document["reason"] not in EXPLAINED_REASONS or "value" not in document:
            return None
        return self.explain(b64decode(document["value"]))


def counted(documents: DataFrame, explained: Explained) -> Quarantined:
    """Return what the staged documents are of."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    rows = (
        _parsed(documents)
        .groupBy("of.topic", "of.partition")
        .agg(
            F.count("*").alias("records"),
            F.min("of.offset").alias("first"),
        )
        .orderBy("topic", "partition")
        .collect()
    )
    if not rows:
        return Quarantined()
    first = rows[0]
    is_first = (F.col("of.topic") == first["topic"]) & (F.col("of.partition") == first["partition"])
    (row,) = _parsed(documents).where(is_first & (F.col("of.offset") == first["first"])).take(1)
    reason = json.loads(explained.document(row["document"]))["reason"]
    return Quarantined(
        {TopicPartition(row["topic"], row["partition"]): row["records"] for row in rows},
        f"offset {first['first']} of {first['topic']}-{first['partition']}: {reason}",
    )


def write(
    spark: SparkSession,
    files: Files,
    run: str,
    part: int,
    documents: DataFrame,
    found: Quarantined,
    explained: Explained,
) -> tuple[PublishedFile, ...]:
    """Write the documents as files to be published, one for each topic, and return the facts read back from them.

    ``part`` is the number of the run's part that they are of. Raises AuditError when the files do not hold what was
    counted before.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses
    from pyspark.sql.types import StringType

    from spark_kafkalite.spark.pyspark_versions import arrow_column

    topics = sorted({tp.topic for tp in found.by_partition})
    by_name = {staged_topic(topic): topic for topic in topics}
    name_of = F.create_map(*(F.lit(text) for pair in by_name.items() for text in reversed(pair)))
    where = f"{staging_path(run)}/quarantine-{part}"
    (
        _parsed(documents)
        .withColumn(GROUP, name_of[F.col("of.topic")])
        .repartition(1)
        .sortWithinPartitions(GROUP, "of.partition", "of.offset")
        .select(arrow_column(explained, StringType(), F.col("document")).alias("document"), GROUP)
        .write.partitionBy(GROUP)
        .option("maxRecordsPerFile", 0)
        .text(f"{files.root}/{where}")
    )
    rows = (
        _parsed(spark.read.schema(f"document string, {GROUP} string").text(f"{files.root}/{where}"))
        .groupBy(GROUP, "file", "of.partition")
        .agg(
            F.min("of.offset").alias("first"),
            F.max("of.offset").alias("last"),
            F.count("*").alias("records"),
            F.max("size").alias("size"),
        )
        .orderBy(GROUP, "file", "partition")
        .collect()
    )
    written = {TopicPartition(by_name[row[GROUP]], row["partition"]): row["records"] for row in rows}
    if written != found.by_partition:
        raise AuditError(
            f"{where} holds {sum(written.values())} records, and {found.records} could not be decoded; nothing was "
            "published"
        )
    made: dict[tuple[str, str], PublishedFile] = {}
    for row in rows:
        topic, rows_of = by_name[row[GROUP]], FilePart(row["partition"], row["first"], row["last"], row["records"])
        before = made.get((topic, row["file"]))
        name = shared_file_name(topic, "quarantine", f"{run}-{part}", len(made) + 1, files.name_max_bytes, "json")
        made[topic, row["file"]] = PublishedFile(
            staged=f"{where}/{GROUP}={row[GROUP]}/{row['file']}",
            final=f"{QUARANTINE}/{directory_name(topic, files.name_max_bytes)}/{name}"
            if before is None
            else before.final,
            topic=topic,
            parts=(rows_of,) if before is None else (*before.parts, rows_of),
            size_bytes=row["size"],
        )
    return tuple(made.values())


def _parsed(documents: DataFrame) -> DataFrame:
    """Return the documents with what they are of, and the files that they lie in."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    columns: list[Column | str] = ["document", F.from_json("document", _OF).alias("of")]
    if GROUP in documents.columns:
        columns += [GROUP, F.col("_metadata.file_name").alias("file"), F.col("_metadata.file_size").alias("size")]
    return documents.select(*columns)
