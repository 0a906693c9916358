"""Random messages of every API and version, and their counterparts in kio, the oracle of the wire tests."""

from __future__ import annotations

import datetime
import io
import random
import sys
import uuid
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from types import UnionType
from typing import Any, get_args, get_origin

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from spark_kafkalite.wire.message import ApiMessage, Message
from spark_kafkalite.wire.messages import SCHEMAS

KNOWN_CODES = [int(code) for code in ErrorCode]
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# Fields of ours that kio does not know.
OWN_TAGS = 10_000
SAMPLE_TEXTS = ["", "a", "orders", "été", "日本", "x" * 126, "y" * 127, "z" * 300]


def all_bodies() -> list[tuple[int, int, bool]]:
    """Every (API key, version, is it the request) that there is a schema for."""
    return [
        (api.key, version, is_request)
        for api in SCHEMAS.values()
        for version in range(api.first_version, api.last_version + 1)
        for is_request in (True, False)
    ]


def random_message(rng: random.Random, cls: type[Message], version: int) -> Any:
    """A message whose fields of this version are random, legal and also expressible in kio."""
    values = {
        name: _random_value(rng, cls, name, type_name, version, nullable is not None and version >= nullable)
        for name, type_name, first, last, nullable, tag in cls.SCHEMA
        if first <= version <= last and not (tag is not None and (tag >= OWN_TAGS or rng.random() < 0.5))
    }
    return cls(**values)


def _random_value(
    rng: random.Random, cls: type[Message], name: str, type_name: str, version: int, nullable: bool
) -> Any:
    if nullable and rng.random() < 0.25:
        return None
    if type_name.startswith("[]"):
        return [
            _random_value(rng, cls, name, type_name[2:], version, False) for _ in range(rng.choice([0, 1, 1, 2, 3]))
        ]
    if type_name == "int16" and name.endswith("error_code"):
        return rng.choice(KNOWN_CODES)
    if type_name == "int64" and name.endswith("_ms"):
        # What a datetime can hold; kio has no way to say "none" for this one field.
        none = 0 if name == "transaction_start_time_ms" else -1
        return rng.choice([none, 0, rng.randrange(4 * 10**12)])
    if type_name in BITS:
        bits = BITS[type_name]
        return rng.choice([0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), rng.randrange(2 ** (bits - 1))])
    match type_name:
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.choice([0.0, -1.5, 1e300])
        case "string":
            return rng.choice(SAMPLE_TEXTS)
        case "bytes" | "records":
            return rng.randbytes(rng.choice([0, 1, 126, 127, 128, 1000]))
        case "uuid":
            return rng.choice([bytes(16), rng.randbytes(16)])
    return random_message(rng, vars(sys.modules[cls.__module__])[type_name], version)


def to_kio(message: ApiMessage, version: int) -> Any:
    """The same content as an instance of kio's class for this version."""
    api = SCHEMAS[message.API_KEY]
    kind = "request" if message.IS_REQUEST else "response"
    module = import_module(f"kio.schema.{api.key.name.lower()}.v{version}.{kind}")
    return _entity_to_kio(message, getattr(module, type(message).__name__))


def _entity_to_kio(message: Message, kio_class: type[Any]) -> Any:
    values = {}
    for field in fields(kio_class):
        kafka_type = field.metadata.get("kafka_type", "")
        name = field.name
        if kafka_type.startswith(("timedelta", "datetime")) and not name.endswith("_ms"):
            name += "_ms"
        value = getattr(message, name)
        if isinstance(value, list):
            values[field.name] = tuple(_value_to_kio(item, kafka_type, field.type) for item in value)
        else:
            values[field.name] = _value_to_kio(value, kafka_type, field.type)
    return kio_class(**values)


def _value_to_kio(value: Any, kafka_type: str, annotation: Any) -> Any:
    if isinstance(value, Message):
        return _entity_to_kio(value, _entity_class(annotation))
    if value is None:
        return None
    if kafka_type == "error_code":
        return ErrorCode(value)
    if kafka_type.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    if kafka_type.startswith("datetime"):
        if value == -1 and type(None) in get_args(annotation):
            return None
        return EPOCH + datetime.timedelta(milliseconds=value)
    if kafka_type == "uuid":
        return uuid.UUID(bytes=value) if any(value) else None
    return value


def _entity_class(annotation: Any) -> Any:
    while get_origin(annotation) is not None:
        parts = [part for part in get_args(annotation) if part not in (type(None), Ellipsis)]
        annotation = parts[0] if isinstance(annotation, UnionType) or parts else annotation
    return annotation


def kio_bytes(entity: Any) -> bytes:
    """What kio writes for one of its entities."""
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def kio_rewritten(kio_class: type[Any], body: bytes) -> bytes:
    """What kio writes after it has read ``body``."""
    entity, _ = entity_reader(kio_class)(body, 0)
    return kio_bytes(entity)


class Samples:
    """The functions of this file, as one fixture."""

    all_bodies = staticmethod(all_bodies)
    random_message = staticmethod(random_message)
    to_kio = staticmethod(to_kio)
    kio_bytes = staticmethod(kio_bytes)
    kio_rewritten = staticmethod(kio_rewritten)

    @staticmethod
    def body_class(api_key: int, is_request: bool) -> type[ApiMessage]:
        return SCHEMAS[api_key].request_class if is_request else SCHEMAS[api_key].response_class


@pytest.fixture(scope="session")
def samples() -> Callable[[], Samples]:
    return Samples()
