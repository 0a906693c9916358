"""Avro values with a schema registry's frame, decoded and encoded in Spark's Python workers.

Owns the frame (a byte 0, the schema's id as a big-endian int32, then the value), the registry's client and what of its
answers a process keeps. Schemas do not change under their ids, so each worker fetches a schema once. Confluent's client
speaks to the registry, and fastavro decodes; both are imported where they are used.

A value that cannot be decoded has a reason in words, next to its null. A registry that does not answer is no fault of a
value: :class:`SparkConditionError` ends the task, so an outage never makes nulls.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import ShownSettings
from spark_kafkalite.spark.avro_columns import AvroSchema, avro_schema, python_values, spark_struct
from spark_kafkalite.spark.conditions import SCHEMA_REGISTRY_FAILED, SparkConditionError
from spark_kafkalite.version import install_command

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NOT_FRAMED: Final = "the value is not framed as a schema registry's serializers do it"
_FRAME: Final = struct.Struct(">bi")
_NO_SUCH_SCHEMA: Final = 40403
_URL: Final = "url"
# A record with an id that is not there may come a million times, or with a million ids.
_MOST_UNKNOWN: Final = 1000
_UNKNOWN_S: Final = 60


@dataclass(frozen=True)
class Registry:
    """A schema registry by the settings of Confluent's client, ``url`` among them."""

    settings: tuple[tuple[str, Any], ...]

    @classmethod
    def at(cls, url: str, client: Mapping[str, Any] | None = None) -> Registry:
        """Return the registry at a URL, or at several with commas. Raises ConfigError where its client is missing."""
        try:
            import confluent_kafka.schema_registry  # noqa: F401 - only whether it is there
            import fastavro  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"a schema registry needs two libraries ({error}): run {install_command('registry')}"
            ) from None
        found = cls(tuple(sorted({**(client or {}), _URL: url}.items())))
        try:
            _client(found)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"schema registry {found}: {error}") from None
        return found

    def __str__(self) -> str:
        parts = [urlsplit(each.strip()) for each in str(dict(self.settings)[_URL]).split(",")]
        return ",".join(urlunsplit(each._replace(netloc=each.netloc.rpartition("@")[2])) for each in parts)

    def __repr__(self) -> str:
        return f"Registry({ShownSettings(self.settings)!r})"

    def schema_of(self, schema_id: int) -> AvroSchema:
        """Return a schema by its id, fetched once by a process.

        Raises ValueError with the reason for an id that the registry does not have, or that is not Avro's, and
        SparkConditionError when the registry fails.
        """
        unknown = _unknown()
        if (self, schema_id) in unknown:
            raise UnknownSchema(unknown[self, schema_id])
        try:
            return _fetched(self, schema_id)
        except UnknownSchema as error:
            unknown[self, schema_id] = str(error)
            raise

    def latest(self, subject: str) -> tuple[int, str, tuple[str, ...]]:
        """Return the id of a subject's newest schema, its text, and the texts of the schemas that it refers to.

        Raises ConfigError when it is not of Avro, SparkConditionError when there is none, or when the registry fails.
        """
        try:
            with _Asking(self, f"subject {subject}"):
                found = _client(self).get_latest_version(subject)
                if found.schema_id is None or found.schema is None:
                    raise ValueError("the registry answered without a schema")
                return found.schema_id, *_texts(self, found.schema)
        except UnknownSchema as error:
            raise ConfigError(f"subject {subject}: {error}") from None

    def register(self, subject: str, text: str) -> int:
        """Return the id of an Avro schema, registered for a subject if it is not yet.

        Raises SparkConditionError when the registry refuses, or fails.
        """
        from confluent_kafka.schema_registry import Schema

        with _Asking(self, f"subject {subject}"):
            return int(_client(self).register_schema(subject, Schema(text, "AVRO")))


class _Asking:
    """Makes one error of all that asking a registry may raise; ``what`` is asked for."""

    def __init__(self, registry: Registry, what: str) -> None:
        self._registry = registry
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, UnknownSchema):
            text = f"{self._registry}, {self._what}: {str(error) or type(error).__name__}"
            raise SparkConditionError(
                SCHEMA_REGISTRY_FAILED, text, "a schema registry does not give a schema"
            ) from error


class UnknownSchema(ValueError):
    """The registry has no such schema, or none of Avro's."""


@cache
def _client(registry: Registry) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient(dict(registry.settings))


@cache
def _unknown() -> MutableMapping[tuple[Registry, int], str]:
    """Return what keeps the reasons of ids that could not be had: for a while, as a registry may have them later."""
    from cachetools import TTLCache

    kept: MutableMapping[tuple[Registry, int], str] = TTLCache(_MOST_UNKNOWN, _UNKNOWN_S)
    return kept


@cache
def _fetched(registry: Registry, schema_id: int) -> AvroSchema:
    from confluent_kafka.schema_registry import SchemaRegistryError

    with _Asking(registry, f"schema id {schema_id}"):
        try:
            schema = _client(registry).get_schema(schema_id)
        except SchemaRegistryError as error:
            if error.error_code == _NO_SUCH_SCHEMA:
                raise UnknownSchema(f"schema id {schema_id} is not in the registry") from None
            raise
        text, references = _texts(registry, schema)
    return avro_schema(text, references)


def _texts(registry: Registry, schema: Any) -> tuple[str, tuple[str, ...]]:
    """Return an Avro schema's text and those of the schemas that it refers to, each after what it refers to itself."""
    if (schema.schema_type or "AVRO") != "AVRO":
        raise UnknownSchema(f"the schema is one of {schema.schema_type}, not of Avro")
    texts: dict[str, None] = {}
    for each in schema.references or ():
        referred = _client(registry).get_version(each.subject, each.version).schema
        text, further = _texts(registry, referred)
        texts.update(dict.fromkeys((*further, text)))
    return schema.schema_str, tuple(texts)


class AvroDecoder:
    """Decodes framed values into the columns of one schema, the reader's; to be sent to workers.

    A record's own schema, the writer's, is that of its id: fields are matched by Avro's rules of schema resolution.
    """

    def __init__(self, registry: Registry, text: str, references: Sequence[str] = ()) -> None:
        """Raises ConfigError for a schema that is none, or that no column can be."""
        self._registry = registry
        self._texts = (text, tuple(references))
        try:
            spark_struct(_parsed(*self._texts))
        except ValueError as error:
            raise ConfigError(f"the reader's schema: {error}") from None

    @property
    def record_type(self) -> StructType:
        """The type of a decoded value."""
        return spark_struct(_parsed(*self._texts))

    @property
    def result_type(self) -> StructType:
        """What is returned for a value: ``record``, null if there is none, and the ``reason`` why."""
        from pyspark.sql.types import StringType, StructType

        return StructType().add("record", self.record_type).add("reason", StringType())

    def __call__(self, values: pa.Array) -> pa.Array:
        """Return a struct of record and reason for each value; both are null for a value of null."""
        schema = _parsed(*self._texts)
        kind = schema.arrow_type
        found = [(None, None) if each is None else self._decoded(each, schema) for each in values.to_pylist()]
        records, reasons = [each for each, _ in found], [reason for _, reason in found]
        try:
            array = pa.array(records, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # One of them, or some: a writer's type that Avro resolves and that is no value of the column.
            for number, record in enumerate(records):
                try:
                    pa.array([record], kind)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    records[number], reasons[number] = None, f"the value does not fit the reader's schema: {error}"
            array = pa.array(records, kind)
        return pa.StructArray.from_arrays(
            [array.cast(_in_microseconds(kind)), pa.array(reasons, pa.string())], ["record", "reason"]
        )

    def _decoded(self, value: bytes, reader: AvroSchema) -> tuple[Any, str | None]:
        from fastavro import schemaless_reader

        if len(value) < _FRAME.size or value[0] != 0:
            return None, NOT_FRAMED
        _, schema_id = _FRAME.unpack_from(value)
        try:
            writer = self._registry.schema_of(schema_id)
        except ValueError as error:
            return None, str(error)
        try:
            return schemaless_reader(io.BytesIO(value[_FRAME.size :]), writer.parsed, reader.parsed), None
        except Exception as error:  # fastavro raises what its parts do: of struct, of text, of indexes
            return (
                None,
                f"the value cannot be read with schema id {schema_id}: {type(error).__name__}: {error}".rstrip(),
            )


class AvroEncoder:
    """Encodes records with one schema, framed with its id; to be sent to workers."""

    def __init__(self, schema_id: int, text: str, references: Sequence[str] = ()) -> None:
        """Raises ConfigError for a schema that is none."""
        self._frame = _FRAME.pack(0, schema_id)
        self._texts = (text, tuple(references))
        try:
            _parsed(*self._texts)
        except ValueError as error:
            raise ConfigError(f"the schema with id {schema_id}: {error}") from None

    def __call__(self, records: pa.Array) -> pa.Array:
        """Return the framed values; null for null. Raises ValueError for a record that the schema does not take."""
        from fastavro import schemaless_writer

        schema = _parsed(*self._texts)
        found: list[bytes | None] = []
        for each in python_values(records):
            if each is None:
                found.append(None)
                continue
            out = io.BytesIO()
            out.write(self._frame)
            try:
                schemaless_writer(out, schema.parsed, each, strict_allow_default=True)
            except Exception as error:  # as in reading
                raise ValueError(f"a record does not fit the schema: {type(error).__name__}: {error}") from None
            found.append(out.getvalue())
        return pa.array(found, pa.binary())


@cache
def _parsed(text: str, references: tuple[str, ...]) -> AvroSchema:
    return avro_schema(text, references)


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """Return a type with the times that Spark has."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_in_microseconds(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_microseconds(kind.item_type))
    return kind
