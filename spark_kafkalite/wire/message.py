"""What all message classes in ``messages/`` and ``inner/`` share, and the entries of the protocol's table of APIs.

One class stands for all versions of its struct, as in Kafka's own Java classes. A field that does not exist in the
version being encoded is left out silently; a field that did not exist in the version that was decoded has its default.
A class lists its fields in wire order:

    class MetadataResponseBroker(Message):
        node_id: int = field("int32", 0, 13)
        rack: str | None = field("string", 1, 13, nullable_from=1, default=None)

Types are ``bool``, ``int8`` to ``int64``, ``uint16``, ``uint32``, ``float64``, ``string``, ``bytes``, ``records``,
``uuid``, the name of a struct of the same module, or one of these behind ``[]``. Fields with a tag live in the tagged
section of a flexible version and are left out while they equal their default (KIP-482).

They are no dataclasses: making one dataclass with slots costs about half a millisecond at import, and a broker's
handlers import some hundred and fifty of them at start. Here the constructor is compiled when the first message of a
class is made.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple, cast, dataclass_transform

from spark_kafkalite.slices import Work, freed
from spark_kafkalite.wire.api_keys import ApiKey

# A list of fewer is freed at once; its elements are not, if they are messages.
_FEW: Final = 256
ZERO_UUID: Final = bytes(16)
# Stands for "not given" and, in a constructor, for "a new one, empty"; None already means null there.
_NEW: Final[Any] = type("_New", (), {"__repr__": lambda self: "new", "__slots__": ()})()
# What a field of the type is without a default of its own. Lists and structs are not here: each gets a new one.
_ZERO_VALUES: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": ZERO_UUID,
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint16", "uint32"), 0),
}


class SchemaRow(NamedTuple):
    """How one field goes over the wire: in which versions it exists, and from which of them on it may be null."""

    name: str
    type: str
    first_version: int
    last_version: int
    nullable_from: int | None
    tag: int | None


class _Field(NamedTuple):
    """What :func:`field` was given."""

    wire: tuple[str, int, int, int | None, int | None]
    default: Any


def field(
    kafka_type: str,
    first_version: int,
    last_version: int,
    *,
    nullable_from: int | None = None,
    tag: int | None = None,
    default: Any = _NEW,
) -> Any:
    """Declare a field of a message. Without ``default`` it starts as zero, empty, or a new list or struct."""
    if default is _NEW:
        default = _ZERO_VALUES.get(kafka_type, _NEW)
    return _Field((kafka_type, first_version, last_version, nullable_from, tag), default)


@dataclass_transform(kw_only_default=True)
class _MessageType(type):
    """Turns the declared fields of a class into its slots, its ``SCHEMA`` and its ``DEFAULTS``."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], api_key: ApiKey | None = None
    ) -> _MessageType:
        fields = {key: value for key, value in namespace.items() if type(value) is _Field}
        for key in fields:
            del namespace[key]
        namespace["__slots__"] = tuple(fields)
        namespace["SCHEMA"] = tuple(SchemaRow(key, *value.wire) for key, value in fields.items())
        if api_key is not None:
            namespace["API_KEY"] = api_key
        namespace["DEFAULTS"] = {key: value.default for key, value in fields.items()}
        return super().__new__(cls, name, bases, namespace)


class Message(metaclass=_MessageType):
    """A struct of the protocol: made of keywords, compared and shown by its fields, mutable, not hashable."""

    __slots__: ClassVar[tuple[str, ...]]
    SCHEMA: ClassVar[tuple[SchemaRow, ...]]
    DEFAULTS: ClassVar[dict[str, Any]]

    def __init__(self, **values: Any) -> None:
        """Compile the constructor of this message's class, which serves from now on, and call it."""
        cls = type(self)
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{row[0]}={getattr(self, row[0])!r}" for row in self.SCHEMA)
        return f"{type(self).__name__}({fields})"


def _constructor(cls: type[Message]) -> Any:
    """Write and compile ``__init__(self, *, field=default, ...)``; only names of generated classes get into it."""
    scope: dict[str, Any] = {"new": _NEW}
    parameters, lines = [], []
    for row in cls.SCHEMA:
        name, default = row.name, cls.DEFAULTS[row.name]
        scope[f"default_{name}"] = default
        value = name
        if default is _NEW and row.type.startswith("[]"):
            value = f"[] if {name} is new else {name}"
        elif default is _NEW:
            # A decoder passes None for a struct that did not come.
            scope[row.type] = getattr(sys.modules[cls.__module__], row.type)
            scope[f"default_{name}"] = None
            value = f"{row.type}() if {name} is None else {name}"
        parameters.append(f"{name}=default_{name}")
        lines.append(f"    self.{name} = {value}\n")
    signature = ", *, " + ", ".join(parameters) if parameters else ""
    exec(f"def __init__(self{signature}):\n" + ("".join(lines) or "    pass\n"), scope)
    return scope["__init__"]


def dismantle(message: Message) -> Work[None]:
    """Free a message's elements in slices: to free a quarter of a million at once takes as long as to read them."""
    for name in message.__slots__:
        value = getattr(message, name)
        if isinstance(value, Message):
            yield from dismantle(value)
        elif isinstance(value, list) and value:
            if len(value) > _FEW:
                yield from freed(value)
            elif isinstance(value[0], Message):
                for element in value:
                    yield from dismantle(element)
                    yield None


class ApiMessage(Message):
    """A whole request or response body; ``class FetchRequest(RequestBody, api_key=ApiKey.FETCH)``."""

    API_KEY: ClassVar[ApiKey]
    IS_REQUEST: ClassVar[bool]


class RequestBody(ApiMessage):
    """The body of a request."""

    IS_REQUEST = True


class ResponseBody(ApiMessage):
    """The body of a response."""

    IS_REQUEST = False


class ApiSchema(NamedTuple):
    """The messages of one API, and their versions: what can be encoded and decoded, not what a broker serves."""

    key: ApiKey
    first_version: int
    last_version: int
    flexible_from: int
    # The package of ``wire`` in which its module lies.
    package: str = "messages"

    @property
    def name(self) -> str:
        """Kafka's name of the API."""
        return self.key.api_name

    @property
    def request_class(self) -> type[ApiMessage]:
        """The request class; imports its module at the first use."""
        return self._load("Request")

    @property
    def response_class(self) -> type[ApiMessage]:
        """The response class; imports its module at the first use."""
        return self._load("Response")

    def _load(self, suffix: str) -> type[ApiMessage]:
        module = import_module(f"spark_kafkalite.wire.{self.package}.{self.key.name.lower()}")
        return cast(type[ApiMessage], getattr(module, self.name + suffix))
