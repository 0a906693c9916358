"""What all message classes in ``messages/`` share, and the entries of the protocol's table of APIs.

The classes are generated, with plain ``__init__`` methods rather than dataclasses: making one dataclass with slots
costs about half a millisecond at import, and a broker's handlers import some hundred and fifty of them at start.

One class stands for all versions of its struct, as in Kafka's own Java classes. A field that does not exist in the
version being encoded is left out silently; a field that did not exist in the version that was decoded has its default.
``SCHEMA`` lists which field exists in which versions, one row a field in wire order:

    (name, type, first version, last version, nullable from version or None, tag or None)

Types are ``bool``, ``int8`` to ``int64``, ``uint16``, ``uint32``, ``float64``, ``string``, ``bytes``, ``records``,
``uuid``, the name of a struct of the same module, or one of these behind ``[]``. Rows with a tag live in the tagged
section of a flexible version and are left out while they equal their default (KIP-482).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple, cast

from spark_kafkalite.slices import Work, freed
from spark_kafkalite.wire.api_keys import ApiKey

SchemaRow = tuple[str, str, int, int, int | None, int | None]

# Stands for "a new empty list" in the keyword arguments of generated constructors; None already means null there.
NEW_LIST: Final[Any] = type("_NewList", (), {"__repr__": lambda self: "[]", "__slots__": ()})()
ZERO_UUID: Final = bytes(16)
# A list of fewer is freed at once; its elements are not, if they are messages.
_FEW: Final = 256


class Message:
    """A struct of the protocol: compared and shown by its fields, mutable, not hashable."""

    __slots__: tuple[str, ...] = ()
    SCHEMA: ClassVar[tuple[SchemaRow, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{row[0]}={getattr(self, row[0])!r}" for row in self.SCHEMA)
        return f"{type(self).__name__}({fields})"


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
    """A whole request or response body."""

    __slots__ = ()
    API_KEY: ClassVar[ApiKey]
    IS_REQUEST: ClassVar[bool]


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
