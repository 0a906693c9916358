"""Writes and compiles the functions that encode and decode one message in one version.

From a class's ``SCHEMA`` come two small Python functions per struct. Neighbouring fields of fixed width, and the int16
or int32 lengths of old versions, become one ``struct`` call; what is variable follows inline. The generated source of a
decoder reads like this (Metadata v4's broker):

    def read_MetadataResponseBroker(buf, pos, end, room):
        node_id, n, = s0(buf, pos)
        pos += 6
        p = pos + n
        if n < 0 or p > end: bad_length('MetadataResponseBroker.host', n, end - pos)
        host = str(buf[pos:p], 'utf-8')
        pos = p
        ...

``buf`` is a memoryview of bytes that ends with the frame, ``end`` its length, ``room`` a one-element list with the
number of array elements and tagged fields that may still come. Bounds of fixed-width fields are checked by ``struct``
and by indexing: the caller turns ``struct.error`` and ``IndexError`` into ``FrameError``. ``pos`` never goes back and
lengths are compared before anything is read at them, so no index is ever negative.

Only names and numbers from generated classes get into the source, nothing that came from a peer.

In slices, a function that loops over elements is a generator that yields after every ``_ELEMENTS_AT_ONCE`` of them, or
after so many bytes. Functions that call it are generators, too. A plain function reads or writes a struct without such
loops in both forms.
"""

from __future__ import annotations

import itertools
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from spark_kafkalite.wire import primitives
from spark_kafkalite.wire.message import ApiMessage, Message, SchemaRow

# Fixed-width types: struct code and size.
FIXED: Final = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uint16": ("H", 2),
    "uint32": ("I", 4),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
# Elements that are read or written between two yields: some hundred microseconds. A power of two.
_ELEMENTS_AT_ONCE: Final = 128
# The same of elements with byte fields, which may be large.
_BYTES_AT_ONCE: Final = 256 * 1024
LENGTH_CODES: Final = {"string": ("h", 2), "bytes": ("i", 4), "records": ("i", 4)}
# What the generated source may call.
_HELPERS: Final = {
    "read_uvarint": primitives.read_uvarint,
    "append_uvarint": primitives.append_uvarint,
    "append_string_length": primitives.append_string_length,
    "read_tagged_field": primitives.read_tagged_field,
    "bad_count": primitives.bad_count,
    "bad_length": primitives.bad_length,
    "too_many_bytes": primitives.too_many_bytes,
    "too_many_elements": primitives.too_many_elements,
    "bad_tag_size": primitives.bad_tag_size,
    "unpack_from": struct.unpack_from,
    "pack": struct.pack,
}


def compile_decoder(
    cls: type[ApiMessage], version: int, *, flexible: bool, in_slices: bool = False
) -> tuple[Callable[..., Any], bool]:
    """Return ``decode(buf, pos, end, room) -> (message, position after it)``, and whether it is a generator."""
    compiler = _DecoderCompiler(cls, version, flexible, in_slices)
    return compiler.compile("read_", cls), compiler.loops(cls)


def compile_encoder(
    cls: type[ApiMessage], version: int, *, flexible: bool, in_slices: bool = False
) -> tuple[Callable[[bytearray, Any], Any], bool]:
    """Return ``encode(out, message)``, which appends to ``out``, and whether it is a generator."""
    compiler = _EncoderCompiler(cls, version, flexible, in_slices)
    return compiler.compile("write_", cls), compiler.loops(cls)


class _Compiler:
    """What both directions share: the structs of the message, fused runs of fixed-width fields, source lines."""

    def __init__(self, root: type[ApiMessage], version: int, flexible: bool, in_slices: bool) -> None:
        self.root = root
        self.version = version
        self.flexible = flexible
        self.in_slices = in_slices
        self.module = vars(sys.modules[root.__module__])
        self.scope: dict[str, Any] = dict(_HELPERS)
        self.lines: list[str] = []
        self.done: set[str] = set()
        self.indent = 1

    def compile(self, prefix: str, cls: type[Message]) -> Callable[..., Any]:
        self.add_struct(cls)
        source = "\n".join(self.lines)
        exec(compile(source, f"<{cls.__name__} v{self.version}>", "exec"), self.scope)
        function: Callable[..., Any] = self.scope[prefix + cls.__name__]
        return function

    def add_struct(self, cls: type[Message]) -> None:
        raise NotImplementedError

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def struct_class(self, name: str) -> type[Message]:
        cls: type[Message] = self.module[name]
        return cls

    def loops(self, cls: type[Message]) -> bool:
        """Whether the function for a struct loops over elements, itself or through others, and is to yield."""
        if not self.in_slices:
            return False
        for row in itertools.chain(*self.rows_of(cls)):
            inner = row[1].removeprefix("[]")
            if inner in FIXED:
                continue
            if row[1].startswith("[]") or (inner not in LENGTH_CODES and self.loops(self.struct_class(inner))):
                return True
        return False

    def call(self, function: str, inner: str) -> str:
        """The call of an inner struct's function, up to the name; it may be a generator."""
        return f"yield from {function}" if self.loops(self.struct_class(inner)) else function

    def for_each(self, item: str, source: str, inner: str, position: str) -> None:
        """Begin a loop over elements; what follows is its body, one level deeper. ``position``: how far it has come."""
        if not self.in_slices:
            self.emit(f"for {item} in {source}:")
        elif self.holds_bytes(inner):
            self.emit(f"begun = {position}")
            self.emit(f"for i, {item} in enumerate({source}):")
            several = f"i & {_ELEMENTS_AT_ONCE - 1} == {_ELEMENTS_AT_ONCE - 1}"
            self.emit(f"    if {several} or {position} - begun > {_BYTES_AT_ONCE}:")
            self.emit("        yield")
            self.emit(f"        begun = {position}")
        else:
            self.emit(f"for i, {item} in enumerate({source}):")
            self.emit(f"    if i & {_ELEMENTS_AT_ONCE - 1} == {_ELEMENTS_AT_ONCE - 1}: yield")
        self.indent += 1

    def holds_bytes(self, inner: str) -> bool:
        """Whether an element has a byte field of its own, and not in a loop that yields."""
        if inner in FIXED or inner in LENGTH_CODES:
            return inner == "bytes"
        return any(
            not row[1].startswith("[]") and self.holds_bytes(row[1])
            for row in itertools.chain(*self.rows_of(self.struct_class(inner)))
        )

    def require(self, type_name: str) -> None:
        """Make sure that the functions of an inner struct exist before the one that is about to be written."""
        inner = type_name.removeprefix("[]")
        if inner not in FIXED and inner not in LENGTH_CODES and inner not in self.done:
            lines, indent = self.lines, self.indent
            self.lines, self.indent = [], 1
            self.add_struct(self.struct_class(inner))
            self.lines, self.indent = [*self.lines, *lines], indent

    def rows_of(self, cls: type[Message]) -> tuple[list[SchemaRow], list[SchemaRow]]:
        """The plain and the tagged rows that exist in this version, the latter by tag."""
        rows = [row for row in cls.SCHEMA if row[2] <= self.version <= row[3]]
        tagged = sorted((row for row in rows if row[5] is not None), key=lambda row: row[5] or 0)
        return [row for row in rows if row[5] is None], tagged

    def nullable(self, row: SchemaRow) -> bool:
        return row[4] is not None and self.version >= row[4]

    def least_size(self, type_name: str) -> int:
        """The fewest bytes that a value of this type has in this version."""
        if type_name.startswith("[]"):
            return 1 if self.flexible else 4
        if type_name in FIXED:
            return FIXED[type_name][1]
        if type_name in LENGTH_CODES:
            return 1 if self.flexible else LENGTH_CODES[type_name][1]
        plain, _ = self.rows_of(self.struct_class(type_name))
        return sum(self.least_size(row[1]) for row in plain) + self.flexible

    def struct_method(self, codes: str, method: str) -> str:
        """Bind a method of a compiled ``struct.Struct`` into the scope and return its name."""
        name = f"{method}_{codes.replace('?', 'bool')}"
        self.scope.setdefault(name, getattr(struct.Struct(">" + codes), method))
        return name


class _DecoderCompiler(_Compiler):
    def add_struct(self, cls: type[Message]) -> None:
        self.done.add(cls.__name__)
        plain, tagged = self.rows_of(cls)
        for row in (*plain, *tagged):
            self.require(row[1])
        self.scope[cls.__name__] = cls
        self.lines.append(f"def read_{cls.__name__}(buf, pos, end, room):")
        run: list[tuple[str, str, int]] = []  # local name, struct code, size
        for row in plain:
            name, type_name = row[0], row[1]
            if type_name in FIXED:
                run.append((f"v_{name}", *FIXED[type_name]))
                continue
            if not self.flexible and (type_name in LENGTH_CODES or type_name.startswith("[]")):
                run.append(("n", *LENGTH_CODES.get(type_name, ("i", 4))))
            self.flush(run)
            self.variable(row, cls.__name__)
        if self.flexible:
            run.append(("tags", "B", 1))
        self.flush(run)
        if self.flexible:
            self.tagged_fields(cls, tagged)
        arguments = ", ".join(f"{row[0]}=v_{row[0]}" for row in (*plain, *tagged))
        self.emit(f"return {cls.__name__}({arguments}), pos")

    def flush(self, run: list[tuple[str, str, int]]) -> None:
        if run:
            targets = ", ".join(name for name, _, _ in run)
            unpack = self.struct_method("".join(code for _, code, _ in run), "unpack_from")
            self.emit(f"{targets}, = {unpack}(buf, pos)")
            self.emit(f"pos += {sum(size for _, _, size in run)}")
            run.clear()

    def variable(self, row: SchemaRow, struct_name: str) -> None:
        """Read a field without fixed width into its local; of an old version its length is already in ``n``."""
        name, type_name = row[0], row[1]
        label = f"'{struct_name}.{name}'"
        nullable = self.nullable(row)
        if type_name in LENGTH_CODES or type_name.startswith("[]"):
            if self.flexible:
                self.compact_length()
            if nullable:
                self.emit("if n < 0:")
                self.emit(f"    v_{name} = None")
                self.emit("else:")
                self.indent += 1
            if type_name.startswith("[]"):
                self.array(f"v_{name}", type_name[2:], label)
            else:
                self.sized(f"v_{name}", type_name, label)
            if nullable:
                self.indent -= 1
            return
        if nullable:
            # KIP-893: a nullable struct has a byte in front, negative for null.
            self.emit("present, = unpack_from('>b', buf, pos)")
            self.emit("pos += 1")
            self.emit("if present < 0:")
            self.emit(f"    v_{name} = None")
            self.emit("else:")
            self.emit(f"    v_{name}, pos = {self.call('read_' + type_name, type_name)}(buf, pos, end, room)")
        else:
            self.emit(f"v_{name}, pos = {self.call('read_' + type_name, type_name)}(buf, pos, end, room)")

    def compact_length(self) -> None:
        self.emit("n = buf[pos]")
        self.emit("if n < 128:")
        self.emit("    pos += 1")
        self.emit("else:")
        self.emit("    n, pos = read_uvarint(buf, pos)")
        self.emit("n -= 1")

    def sized(self, target: str, type_name: str, label: str) -> None:
        """Read ``n`` bytes as a string, bytes or a view."""
        limit = f" or n > {primitives.MAX_STRING_BYTES}" if type_name == "string" and self.flexible else ""
        self.emit("p = pos + n")
        self.emit(f"if n < 0 or p > end{limit}: bad_length({label}, n, end - pos)")
        if type_name == "bytes" and self.root.IS_REQUEST:
            self.emit(f"if n > {primitives.MAX_REQUEST_BYTES_FIELD}: too_many_bytes({label}, n)")
        value = {"string": "str(buf[pos:p], 'utf-8')", "bytes": "bytes(buf[pos:p])", "records": "buf[pos:p]"}
        self.emit(f"{target} = {value[type_name]}")
        self.emit("pos = p")

    def array(self, target: str, inner: str, label: str) -> None:
        """Read ``n`` elements into a list."""
        # An element without any byte would let a count cost nothing; no struct of the protocol is that empty.
        least = max(1, self.least_size(inner))
        self.emit(f"if n < 0 or n * {least} > end - pos: bad_count({label}, n, end - pos)")
        self.emit("room[0] -= n")
        self.emit(f"if room[0] < 0: too_many_elements({label})")
        if inner in FIXED:
            code, size = FIXED[inner]
            # "16s" takes no repeat count; the only arrays of it are short.
            codes = f"'>' + '{code}' * n" if inner == "uuid" else f"f'>{{n}}{code}'"
            self.emit(f"{target} = list(unpack_from({codes}, buf, pos))")
            self.emit(f"pos += n * {size}")
            return
        self.emit(f"{target} = []")
        self.emit(f"add = {target}.append")
        self.for_each("_", "range(n)", inner, "pos")
        if inner in LENGTH_CODES:
            if self.flexible:
                self.compact_length()
            else:
                code, size = LENGTH_CODES[inner]
                self.emit(f"n, = {self.struct_method(code, 'unpack_from')}(buf, pos)")
                self.emit(f"pos += {size}")
            self.sized("item", inner, label)
        else:
            self.emit(f"item, pos = {self.call('read_' + inner, inner)}(buf, pos, end, room)")
        self.emit("add(item)")
        self.indent -= 1

    def tagged_fields(self, cls: type[Message], tagged: list[SchemaRow]) -> None:
        defaults = cls() if tagged else None
        for row in tagged:
            if row[1].startswith("[]"):
                self.emit(f"v_{row[0]} = []")
            elif row[1] in FIXED or row[1] in LENGTH_CODES:
                self.emit(f"v_{row[0]} = {getattr(defaults, row[0])!r}")
            else:
                self.emit(f"v_{row[0]} = None")  # the constructor makes the struct
        self.emit("if tags:")
        self.indent += 1
        self.emit("if tags > 127: tags, pos = read_uvarint(buf, pos - 1)")
        self.emit(f"if tags * 2 > end - pos: bad_count('{cls.__name__} tagged fields', tags, end - pos)")
        self.emit(f"if tags > {primitives.MAX_TAGGED_FIELDS}: too_many_elements('{cls.__name__} tagged fields')")
        self.emit("room[0] -= tags")
        self.emit(f"if room[0] < 0: too_many_elements('{cls.__name__} tagged fields')")
        self.emit("for _ in range(tags):")
        self.indent += 1
        self.emit("tag, pos, stop = read_tagged_field(buf, pos, end)")
        for row in tagged:
            self.emit(f"if tag == {row[5]}:")
            self.indent += 1
            self.emit("start = pos")
            if row[1] in FIXED:
                run = [(f"v_{row[0]}", *FIXED[row[1]])]
                self.flush(run)
            else:
                self.variable(row, cls.__name__)
            self.emit(f"if pos != stop: bad_tag_size('{cls.__name__}.{row[0]}', stop - start, pos - start)")
            self.indent -= 1
        self.emit("pos = stop")
        self.indent -= 2


class _EncoderCompiler(_Compiler):
    def add_struct(self, cls: type[Message]) -> None:
        self.done.add(cls.__name__)
        plain, tagged = self.rows_of(cls)
        for row in (*plain, *tagged):
            self.require(row[1])
        self.lines.append(f"def write_{cls.__name__}(out, m):")
        run: list[tuple[str, str]] = []  # expression, struct code
        for row in plain:
            if row[1] in FIXED:
                run.append((f"m.{row[0]}", FIXED[row[1]][0]))
            else:
                self.variable(row, run)
        if not self.flexible:
            self.flush(run)
        elif tagged:
            self.flush(run)
            self.tagged_fields(cls, tagged)
        else:
            run.append(("", "x"))  # no tagged fields: a zero byte
            self.flush(run)
        if not plain and not self.flexible:
            self.emit("pass")

    def flush(self, run: list[tuple[str, str]]) -> None:
        if run:
            arguments = ", ".join(expression for expression, _ in run if expression)
            codes = "".join(code for _, code in run)
            if codes == "x":
                self.emit("out.append(0)")
            else:
                self.emit(f"out += {self.struct_method(codes, 'pack')}({arguments})")
            run.clear()

    def variable(self, row: SchemaRow, run: list[tuple[str, str]]) -> None:
        """Write a field without fixed width; ``run`` is what stands before it and is not yet written."""
        name, type_name = row[0], row[1]
        is_array = type_name.startswith("[]")
        if not is_array and type_name not in LENGTH_CODES:
            self.flush(run)
            if self.nullable(row):
                self.emit(f"if m.{name} is None:")
                self.emit("    out.append(255)")
                self.emit("else:")
                self.emit("    out.append(1)")
                self.emit(f"    {self.call('write_' + type_name, type_name)}(out, m.{name})")
            else:
                self.emit(f"{self.call('write_' + type_name, type_name)}(out, m.{name})")
            return
        self.emit(f"v = m.{name}")
        nullable = self.nullable(row)
        if nullable:
            self.flush(run)
            self.emit("if v is None:")
            if self.flexible:
                self.emit("    out.append(0)")
            else:
                self.emit(f"    out += {struct.pack('>' + LENGTH_CODES.get(type_name, ('i', 4))[0], -1)!r}")
            self.emit("else:")
            self.indent += 1
        if is_array:
            self.length("len(v)", "array", run)
            self.elements(type_name[2:])
        else:
            self.sized("v", type_name, run)
        if nullable:
            self.indent -= 1

    def sized(self, value: str, type_name: str, run: list[tuple[str, str]]) -> None:
        if type_name == "string":
            self.emit(f"v = {value}.encode()")
            value = "v"
        self.length(f"len({value})", type_name, run)
        self.emit(f"out += {value}")

    def length(self, expression: str, type_name: str, run: list[tuple[str, str]]) -> None:
        """Write a length, together with the run before it where it has fixed width."""
        if not self.flexible:
            run.append((expression, LENGTH_CODES.get(type_name, ("i", 4))[0]))
            self.flush(run)
            return
        self.flush(run)
        self.emit(f"n = {expression}")
        self.emit("if n < 127: out.append(n + 1)")
        append = "append_string_length(out, n)" if type_name == "string" else "append_uvarint(out, n + 1)"
        self.emit(f"else: {append}")

    def elements(self, inner: str) -> None:
        """Write the elements of the list ``v``."""
        if inner in FIXED:
            code = FIXED[inner][0]
            codes = f"'>' + '{code}' * len(v)" if inner == "uuid" else f"f'>{{len(v)}}{code}'"
            self.emit(f"out += pack({codes}, *v)")
            return
        self.for_each("item", "v", inner, "len(out)")
        if inner in LENGTH_CODES:
            self.sized("item", inner, [])
        else:
            self.emit(f"{self.call('write_' + inner, inner)}(out, item)")
        self.indent -= 1

    def tagged_fields(self, cls: type[Message], tagged: list[SchemaRow]) -> None:
        """Write the tagged fields that differ from their defaults, by tag, each with its size in front."""
        defaults = cls()
        self.emit("tags = 0")
        self.emit("body = bytearray()")
        for row in tagged:
            name, type_name = row[0], row[1]
            default = f"default_{cls.__name__}_{name}"
            self.scope[default] = getattr(defaults, name)
            self.emit(f"if m.{name} != {default}:")
            self.indent += 1
            self.emit("tags += 1")
            self.emit("whole, out = out, bytearray()")
            if type_name in FIXED:
                run = [(f"m.{name}", FIXED[type_name][0])]
                self.flush(run)
            else:
                self.variable(row, [])
            self.emit(f"append_uvarint(body, {row[5]})")
            self.emit("append_uvarint(body, len(out))")
            self.emit("body += out")
            self.emit("out = whole")
            self.indent -= 1
        self.emit("append_uvarint(out, tags)")
        self.emit("out += body")
