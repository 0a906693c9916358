"""Write spark_kafkalite/wire/messages/ from kio's schemas: one module per API, one class per struct for all versions.

Run after an upgrade of kio, or when an API is added to ``wire/api_keys.py``:

    python scripts/generate_messages.py            # rewrites the files
    python scripts/generate_messages.py --check    # exit status 1 when they differ from what would be written

kio (a development dependency) has one dataclass per struct *and version*. This script lays them over each other, checks
that a field means the same wherever it occurs, and fails loudly when it does not, so that a surprise in a new kio shows
here and not on the wire. Kafka's own names come back: kio turns ``timeoutMs`` into ``timeout`` and a timedelta, we
write ``timeout_ms`` and an int. Uuids are 16 bytes, error codes plain ints, record batches views.

Defaults are the schema's, with one exception: a string, bytes or records field that may be null in every version and
has no default of its own starts as None, not as an empty string, so that an error message nobody set stays null.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import pkgutil
import re
import sys
import uuid
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, get_args, get_origin

import kio.schema
from kio.static.constants import EntityType

from spark_kafkalite.wire.api_keys import FIRST_OWN_KEY, ApiKey

MESSAGES = Path(__file__).resolve().parent.parent / "spark_kafkalite" / "wire" / "messages"

LINE_LENGTH = 120

# kio's names for wire types that it turns into Python's own classes.
PLAIN_TYPES = {"error_code": "int16", "timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
TIME_TYPES = {"timedelta_i32", "timedelta_i64", "datetime_i64"}
PYTHON_TYPES = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
    "uuid": "bytes",
}
ZERO_VALUES = {
    "bool": "False",
    "float64": "0.0",
    "string": '""',
    "bytes": 'b""',
    "records": "None",
    "uuid": "ZERO_UUID",
}
# Fields of our own, which no schema of Kafka's has: tagged ones, which every other reader skips (KIP-482). By package
# and struct; tags of Kafka's count from 0.
OWN_TAGS = 10_000
OWN_FIELDS = {
    ("elect_leaders", "TopicPartitions"): (
        ("desired_leaders", "[]int32", OWN_TAGS, False),
        ("seen_leader_epochs", "[]int32", OWN_TAGS + 1, False),
        ("accepted_offsets", "[]int64", OWN_TAGS + 2, False),
    ),
    ("describe_topic_partitions", "DescribeTopicPartitionsResponsePartition"): (
        ("why_leaderless", "string", OWN_TAGS, True),
    ),
    ("describe_cluster", "DescribeClusterBroker"): (("software_version", "string", OWN_TAGS, True),),
    ("describe_log_dirs", "DescribeLogDirsPartition"): (
        ("damaged_offsets", "[]int64", OWN_TAGS, False),
        ("why_stopped", "string", OWN_TAGS + 1, True),
        ("comparison_state", "string", OWN_TAGS + 2, True),
        ("comparison", "string", OWN_TAGS + 3, True),
    ),
    ("describe_log_dirs", "DescribeLogDirsResult"): (("refusal", "string", OWN_TAGS, True),),
    ("describe_log_dirs", "DescribeLogDirsRequest"): (
        ("compares", "bool", OWN_TAGS, False),
        ("wants_host_logs", "bool", OWN_TAGS + 1, False),
        ("stands_still", "bool", OWN_TAGS + 2, False),
    ),
    ("describe_log_dirs", "DescribeLogDirsResponse"): (
        ("host_logs", "bytes", OWN_TAGS, True),
        ("why_no_host_logs", "string", OWN_TAGS + 1, True),
    ),
}
KIO_PACKAGES = {module.name for module in pkgutil.iter_modules(kio.schema.__path__) if module.ispkg}


@dataclass
class Row:
    """One field of a struct over all versions."""

    name: str
    type: str
    tag: int | None
    default: str | None
    versions: list[int] = field(default_factory=list)
    nullable: list[int] = field(default_factory=list)


@dataclass
class Struct:
    """One struct over all versions; ``rows`` in wire order; ``is_message`` for a whole request or response."""

    name: str
    is_message: bool
    rows: list[Row] = field(default_factory=list)


@dataclass
class SchemaOfApi:
    key: ApiKey
    package: str
    versions: list[int]
    flexible_from: int
    requests: list[Struct]
    responses: list[Struct]

    @property
    def name(self) -> str:
        return self.requests[-1].name.removesuffix("Request")


# Reading kio ----------------------------------------------------------------------------------------------------------


def api_packages() -> dict[int, str]:
    """Map the API keys that are wanted to kio's package names."""
    found = {}
    for package in sorted(KIO_PACKAGES):
        versions = versions_of(package)
        module = kio_module(package, versions[-1], "request")
        if module is None:
            continue
        key = next(int(cls.__api_key__) for cls in structs_in(module))
        if key in set(ApiKey):
            found[key] = package
    missing = {key for key in ApiKey if key < FIRST_OWN_KEY} - set(found)
    if missing:
        raise SystemExit(f"kio has no schema for API keys {sorted(missing)}: take them out of wire/api_keys.py")
    return dict(sorted(found.items()))


def versions_of(package: str) -> list[int]:
    root = importlib.import_module(f"kio.schema.{package}")
    names = (module.name for module in pkgutil.iter_modules(root.__path__))
    return sorted(int(name[1:]) for name in names if re.fullmatch(r"v\d+", name))


def kio_module(package: str, version: int, kind: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"kio.schema.{package}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None


def structs_in(module: ModuleType) -> list[type[Any]]:
    """The structs that a kio module defines, inner ones before those that hold them."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    return [cls for cls in classes if is_dataclass(cls) and cls.__module__ == module.__name__]


def read_api(key: int, package: str) -> SchemaOfApi:
    versions = versions_of(package)
    if versions != list(range(versions[0], versions[-1] + 1)):
        raise SystemExit(f"{package}: versions {versions} have a hole")
    flexible: dict[str, list[int]] = {}
    merged: dict[str, list[Struct]] = {}
    for kind in ("request", "response"):
        structs: dict[str, Struct] = {}
        flexible[kind] = []
        for version in versions:
            module = kio_module(package, version, kind)
            if module is None:
                raise SystemExit(f"{package} v{version}: kio has no {kind}")
            for cls in structs_in(module):
                is_message = cls.__type__ is not EntityType.nested
                struct = structs.setdefault(cls.__name__, Struct(cls.__name__, is_message))
                merge(struct, cls, version)
                if cls.__flexible__ and version not in flexible[kind]:
                    flexible[kind].append(version)
        merged[kind] = in_definition_order(structs)
    if flexible["request"] != flexible["response"]:
        raise SystemExit(f"{package}: request and response are flexible in different versions")
    flexible_versions = flexible["request"]
    # One past the last version stands for "never flexible".
    flexible_from = flexible_versions[0] if flexible_versions else 32767
    for struct in (*merged["request"], *merged["response"]):
        for name, type_name, tag, nullable in OWN_FIELDS.get((package, struct.name), ()):
            nullable_in = list(flexible_versions) if nullable else []
            struct.rows.append(Row(name, type_name, tag, None, list(flexible_versions), nullable_in))
        check_struct(package, struct)
    rename_clashes(merged["request"], merged["response"])
    api = SchemaOfApi(ApiKey(key), package, versions, flexible_from, merged["request"], merged["response"])
    if (api.key.api_name, api.key.name.lower()) != (api.name, package):
        raise SystemExit(f"{api.key!r} is {api.name} in kio, and {package} its package")
    return api


def merge(struct: Struct, cls: type[Any], version: int) -> None:
    """Lay one version's dataclass over what is known of the struct; rows keep the order that every version has."""
    place = 0
    for kio_field in fields(cls):
        row, nullable = row_of(kio_field)
        known = next((i for i, other in enumerate(struct.rows) if other.name == row.name), None)
        if known is None:
            struct.rows.insert(place, row)
            known = place
        elif known < place:
            raise SystemExit(f"{cls.__name__}.{row.name}: v{version} has another order than earlier versions")
        merged = struct.rows[known]
        if (merged.type, merged.tag, merged.default) != (row.type, row.tag, row.default):
            raise SystemExit(f"{cls.__name__}.{row.name}: v{version} has {row}, earlier versions {merged}")
        merged.versions.append(version)
        if nullable:
            merged.nullable.append(version)
        place = known + 1


def row_of(kio_field: Any) -> tuple[Row, bool]:
    """Return the field's row, for no version yet, and whether this version lets it be null."""
    kafka_type = kio_field.metadata.get("kafka_type")
    inner, is_array, nullable = unwrap(kio_field.type)
    if kafka_type is None:
        type_name = inner.__name__
    else:
        type_name = PLAIN_TYPES.get(kafka_type, kafka_type)
    name = kio_field.name
    if kafka_type in TIME_TYPES and not name.endswith("_ms"):
        name += "_ms"
    # kio writes "no such id" and "no such time" as None; on the wire these are a zero and a -1, never a null.
    if kafka_type in ("uuid", "datetime_i64"):
        nullable = False
    default = None if kio_field.default is MISSING else default_of(kio_field.default, type_name, is_array)
    return Row(name, "[]" + type_name if is_array else type_name, kio_field.metadata.get("tag"), default), nullable


def unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """Split an annotation of kio into its inner type, whether it is an array, and whether it may be None."""
    nullable = is_array = False
    if get_origin(annotation) is UnionType:
        annotation = next(part for part in get_args(annotation) if part is not type(None))
        nullable = True
    if get_origin(annotation) is tuple:
        annotation = get_args(annotation)[0]
        is_array = True
    return annotation, is_array, nullable


def default_of(value: Any, type_name: str, is_array: bool) -> str:
    """Write kio's default as the Python expression that stands in the generated constructor."""
    if value == () and is_array:
        return "NEW_LIST"
    if value is None:
        return {"uuid": "ZERO_UUID", "int64": "-1"}.get(type_name, "None")
    if is_dataclass(value):
        return f"{type_name}()"
    if isinstance(value, datetime.timedelta):
        return str(round(value.total_seconds() * 1000))
    if isinstance(value, uuid.UUID):
        return repr(value.bytes)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return '"' + value + '"'
    raise SystemExit(f"no way to write the default {value!r} of type {type_name}")


def in_definition_order(structs: dict[str, Struct]) -> list[Struct]:
    """Inner structs before those that hold them, the message itself last."""
    ordered: list[Struct] = []

    def visit(struct: Struct) -> None:
        if struct in ordered:
            return
        for row in struct.rows:
            inner = structs.get(row.type.removeprefix("[]"))
            if inner is not None:
                visit(inner)
        ordered.append(struct)

    for struct in structs.values():
        visit(struct)
    return sorted(ordered, key=lambda struct: struct.is_message)


def check_struct(package: str, struct: Struct) -> None:
    for row in struct.rows:
        if row.versions != list(range(row.versions[0], row.versions[-1] + 1)):
            raise SystemExit(f"{package}: {struct.name}.{row.name} exists in versions {row.versions}, with a hole")
        if row.nullable and row.nullable != [v for v in row.versions if v >= row.nullable[0]]:
            raise SystemExit(f"{package}: {struct.name}.{row.name} is nullable in {row.nullable}, with a hole")


def rename_clashes(requests: list[Struct], responses: list[Struct]) -> None:
    """Give structs that request and response both define, differently, a suffix each."""
    clashes = {struct.name for struct in requests} & {struct.name for struct in responses}
    for structs, suffix in ((requests, "Request"), (responses, "Response")):
        for struct in structs:
            for row in struct.rows:
                inner = row.type.removeprefix("[]")
                if inner in clashes:
                    row.type = row.type + suffix
                    row.default = row.default.replace(inner, inner + suffix) if row.default else None
            if struct.name in clashes:
                struct.name += suffix


# Writing --------------------------------------------------------------------------------------------------------------


def span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def python_type(row: Row) -> str:
    inner = row.type.removeprefix("[]")
    name = PYTHON_TYPES.get(inner, "int" if re.fullmatch(r"u?int\d+", inner) else inner)
    if row.type.startswith("[]"):
        name = f"list[{name}]"
    return f"{name} | None" if row.nullable or row.type == "records" else name


def default_of_row(row: Row) -> str | None:
    """The default that a field has to be given; None where it is what every field of its type starts as."""
    if row.type in ("string", "bytes") and row.nullable == row.versions and row.default is None:
        return "None"
    new = {"NEW_LIST", f"{row.type}()", ZERO_VALUES.get(row.type, "0")}
    return None if row.default in new else row.default


def write_struct(struct: Struct, api: SchemaOfApi, kind: str) -> str:
    declared = [line for row in struct.rows for line in field_lines(row)]
    if not struct.is_message:
        # Its fields say in which versions it is there.
        return "\n".join([f"class {struct.name}(Message):", *declared])
    text = f"The body of {article(api.name)} {api.name} {kind}, versions {api_span(api)}."
    lines = [f"class {struct.name}({kind.title()}Body, api_key=ApiKey.{api.key.name}):", f'    """{text}"""']
    return "\n".join([*lines, "", *declared] if declared else lines)


def field_lines(row: Row) -> list[str]:
    """Write the declaration of a field as ruff would format it."""
    arguments = f'"{row.type}", {row.versions[0]}, {row.versions[-1]}'
    default = default_of_row(row)
    for name, value in (("nullable_from", row.nullable[0] if row.nullable else None), ("tag", row.tag)):
        arguments += f", {name}={value}" if value is not None else ""
    arguments += f", default={default}" if default is not None else ""
    line = f"    {row.name}: {python_type(row)} = field({arguments})"
    if len(line) <= LINE_LENGTH:
        return [line]
    return [f"    {row.name}: {python_type(row)} = field(", f"        {arguments}", "    )"]


def article(name: str) -> str:
    return "an" if name[0] in "AEIO" else "a"


def api_span(api: SchemaOfApi) -> str:
    return span(api.versions[0], api.versions[-1])


def write_module(api: SchemaOfApi) -> str:
    flexible = f"flexible from {api.flexible_from}" if api.flexible_from <= api.versions[-1] else "never flexible"
    parts = []
    for kind, structs in (("request", api.requests), ("response", api.responses)):
        parts += [write_struct(struct, api, kind) for struct in structs]
    body = "\n\n\n".join(parts)
    helpers = ["Message"] if "(Message)" in body else []
    helpers += ["RequestBody", "ResponseBody"]
    if " = field(" in body:
        helpers.append("field")
    imports = "from spark_kafkalite.wire.api_keys import ApiKey\n"
    imports += f"from spark_kafkalite.wire.message import {', '.join(helpers)}\n"
    if "Buffer" in body:
        imports += "\nBuffer = bytes | bytearray | memoryview\n"
    return (
        "# Generated by scripts/generate_messages.py from the schemas of kio: change the script, not this file.\n"
        f'"""{api.name} (API {api.key}): request and response, versions {api_span(api)}, {flexible}."""\n\n'
        f"from __future__ import annotations\n\n{imports}\n\n{body}\n"
    )


def write_index(apis: list[SchemaOfApi]) -> str:
    rows = []
    for api in apis:
        first, last = api.versions[0], api.versions[-1]
        rows.append(f"    ApiSchema(ApiKey.{api.key.name}, {first}, {last}, {api.flexible_from}),")
    return (
        "# Generated by scripts/generate_messages.py from the schemas of kio: change the script, not this file.\n"
        '"""The protocol\'s messages: one module per API, imported when first asked for, and the table of them all.\n\n'
        "``SCHEMAS`` says which versions can be encoded and decoded here; what a broker advertises is its own matter.\n"
        "The last column is the first flexible version (compact lengths and tagged fields), 32767 where none is.\n"
        '"""\n\n'
        "from __future__ import annotations\n\n"
        "from typing import Final\n\n"
        "from spark_kafkalite.wire.api_keys import ApiKey\n"
        "from spark_kafkalite.wire.message import ApiSchema\n\n"
        "_SCHEMAS: Final = (\n" + "\n".join(rows) + "\n)\n"
        "SCHEMAS: Final[dict[int, ApiSchema]] = {int(schema.key): schema for schema in _SCHEMAS}\n"
    )


def generate() -> dict[str, str]:
    """Return the files to write: name to text."""
    apis = [read_api(key, package) for key, package in api_packages().items()]
    files = {f"{api.package}.py": write_module(api) for api in apis}
    files["__init__.py"] = write_index(apis)
    return files


def stale_files() -> list[str]:
    """Name the checked-in files that differ from what this script would write, or that it would not write."""
    files = generate()
    present = {path.name: path.read_text() for path in MESSAGES.glob("*.py")}
    return sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description="Write spark_kafkalite/wire/messages/ from kio's schemas.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    if parser.parse_args().check:
        stale = stale_files()
        if stale:
            print(f"out of date: {', '.join(stale)}; run python scripts/generate_messages.py", file=sys.stderr)
        return 1 if stale else 0
    files = generate()
    MESSAGES.mkdir(exist_ok=True)
    for path in MESSAGES.glob("*.py"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (MESSAGES / name).write_text(text)
    print(f"{len(files)} files in {MESSAGES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
