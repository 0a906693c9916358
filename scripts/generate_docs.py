"""Write the generated pages: docs/protocol.md from the dispatch table, docs/configuration.md from the settings,
docs/files.md from the modules' first lines. In the other pages it renews the names of the wheel.

    python scripts/generate_docs.py            # rewrites the files
    python scripts/generate_docs.py --check    # exit status 1 when they differ from what would be written

What a page says is said once in the code: versions beside each handler, defaults, bounds and texts in the
SettingGroups, what a module owns at its top. A test runs the check.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

from spark_kafkalite.broker.requests import handlers
from spark_kafkalite.broker.requests.dispatch import SERVED_APIS
from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.client.config import ADMIN_SETTINGS, CONSUMER_SETTINGS, PRODUCER_SETTINGS
from spark_kafkalite.client.registry_consumer.config import CONNECTOR_SETTINGS
from spark_kafkalite.log.topic_config import TOPIC_SETTINGS
from spark_kafkalite.security.settings import SECURITY_SETTINGS
from spark_kafkalite.settings import Setting, SettingGroup
from spark_kafkalite.spark.options.declarations import READER_OPTIONS, WRITER_OPTIONS
from spark_kafkalite.version import WHEEL

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGE = ROOT / "spark_kafkalite"
GENERATED = "<!-- Written by scripts/generate_docs.py: change the code that it reads, then run it. -->\n"

_PROTOCOL_HEAD = """# The protocol that the broker serves

The broker speaks Kafka's protocol to any Kafka client. A client asks with ApiVersions what is served and chooses the
highest version that both know. The answer is built from the table below. With one exception (Produce 0 to 2, see
below) the broker advertises only versions that it serves.

| key | API | versions | advertised from | what it does |
|---|---|---|---|---|
"""

_PROTOCOL_NOTES = """
Produce is advertised from version 0 although the broker does not serve versions 0 to 2. Otherwise librdkafka up to
2.11.0 sends uncompressed batches. A Produce request of version 0 to 2 closes the connection. So does any request of an
API or version that is not in the table, except ApiVersions: the broker answers an unknown version of it in version 0.
CompareReplicas is not an API of Kafka: only the brokers of a cluster use it, between each other.
"""

_PROTOCOL_REST = """
## Rights

With `authorizer.class.name` a client needs these rights ([security.md](security.md#what-users-may-do-acls)). The broker
asks for each topic, group or transactional id of a request before it looks it up; the answer for that item is
TOPIC_AUTHORIZATION_FAILED (29), GROUP_AUTHORIZATION_FAILED (30), CLUSTER_AUTHORIZATION_FAILED (31) or
TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53). Auto-creation of a topic needs CREATE. The answer of CreateTopics shows size
and settings of a topic only with DESCRIBE_CONFIGS.

{rights}

## What is not served

- The newer consumer protocol (KIP-848, keys 68 and 69). `group.protocol=classic`, the default of the clients that have
  both, is served. With `group.protocol=consumer` no client falls back to it: Java's `poll()` raises
  UnsupportedVersionException, which names that setting; librdkafka (2.16) waits, reads nothing and reports nothing.
- Transactions. The broker does not serve APIs 24 to 28: such a request closes the connection. InitProducerId with a
  transactional id, and Produce with a transactional id or batch, get TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
- Settings of client metrics and of groups (resource types CLIENT_METRICS, 16, and GROUP, 32). ListConfigResources and
  DescribeConfigs return none; AlterConfigs and IncrementalAlterConfigs get INVALID_REQUEST.
- Moving replicas between log directories (34).
- Topic ids in Produce (version 13 and newer).
- A fetch session on a second connection: a fetch session belongs to the connection that opened it, and ends with it.
- Message formats before version 2 (magic 0 and 1).

## Limits that a client may meet

- A request of more than `socket.request.max.bytes` closes its connection, and so does one that arrives too slowly
  (`request.read.timeout.ms`).
- A request other than a Produce has at most 32 MiB, and at most 262,144 array elements (topics, partitions, groups,
  settings and tagged fields together; 4,096 tagged fields in one struct). A byte field of it (a group member's
  metadata, its assignment, an authentication) has at most 8 MiB. What is larger closes its connection.
- No other client waits for a large request: it is read, served and answered in slices of 3 ms. The next requests of
  its connection wait meanwhile. The broker works on four slow requests at a time. What is named twice is answered
  once. Such a request takes at most 256 MiB of memory in addition to its own bytes and its answer.
- Requests may be pipelined; answers come in the order of the requests. A connection with more than
  `queued.max.requests.per.connection` unanswered requests is not read until some are answered.
- A partition knows `max.producer.ids.per.partition` idempotent producers. When more producers have written, the broker
  removes the state of the one that wrote least recently. If that producer writes again, its batch gets
  UNKNOWN_PRODUCER_ID, unless the batch begins at sequence 0. Clients start over with another epoch or id, and their
  records arrive once and in order. In three cases idempotence is lost. (1) The answer to a batch was lost, and the
  broker removed the producer's state before the producer retried: the batch is written twice, because clients retry it
  under the new epoch. (2) The same can happen with the first batch of a producer. (3) An old instance of a producer
  whose state was removed is not fenced.
- Settings of a broker that are unknown are refused (INVALID_REQUEST); Apache Kafka keeps them for plug-ins.
- Levels of a broker's loggers (resource type 8) are altered with IncrementalAlterConfigs only, and hold until the
  broker ends, both as in Apache Kafka. The loggers have the names of this broker's modules.
- An answer to DescribeTopicPartitions holds at most `max.request.partition.size.limit` partitions, and as many
  topics; its cursor names the next one.
- The text of an error begins with Apache Kafka's words where Kafka has any; what follows them is this broker's.
- A group fits into one record of `__consumer_offsets` (1 MiB): its leader's SyncGroup is answered with
  INVALID_COMMIT_OFFSET_SIZE otherwise. Its members' metadata is bounded (`group.max.bytes`, GROUP_MAX_SIZE_REACHED),
  and so is that of all groups (`group.coordinator.max.bytes`, COORDINATOR_NOT_AVAILABLE); a member has at most 100
  protocols.
- A batch is refused with MESSAGE_TOO_LARGE above `max.message.bytes`, as it arrives or as the topic's
  `compression.type` keeps it, and with INVALID_RECORD when it unpacks to more than `max.decompressed.batch.bytes`.
- The broker accepts a compressed batch if Java's consumer (4.3.0) can read it. Otherwise it refuses the batch
  (CORRUPT_MESSAGE or INVALID_RECORD), as Apache Kafka does. It refuses one kind of frame that Apache Kafka accepts,
  because Java's consumer cannot read it: lz4 with an empty block between others.
- librdkafka (2.16.1) cannot read some batches that this broker and Apache Kafka accept. No client in use writes such
  batches. For these librdkafka returns `_BAD_COMPRESSION` or `_BAD_MSG`: gzip with reserved flags; snappy with several
  xerial headers, or with bytes after the last block; zstd with an unfinished last frame. It returns the same for lz4
  with a wrong content size or content checksum, or with bytes after the frame. Of gzip with several members it reads
  only the first; an empty first member crashes the client process.
"""

_CONFIGURATION_HEAD = """# Settings

Names are Kafka's wherever Kafka has the setting. Unknown broker settings are an error at start that names them all and,
for each, the nearest known one; an unknown client setting is a warning; an unknown Spark option is an error at
`.load()`.

A broker setting with *dynamic* in its type may also be changed while brokers run, for one broker or for all of them
(`kafkalite configs alter --entity-type brokers`), and so may every topic setting. Of several values the topic's own
counts first, then the one set for the broker, the one set for all brokers, the one in the broker's file, the default.

What Apache Kafka 4.3 calls dynamic is dynamic here, with these exceptions, which need a restart: `listeners`,
`listener.security.protocol.map`, and the settings that begin with `ssl.` and `sasl.`. A broker opens its listeners
once. Keys and passwords are not kept in the registry, where other programs might read them. A renewed certificate
needs no restart: the broker reads its files again at SIGHUP, and within 60 s. The users of SCRAM are not settings
(`kafkalite users`).
"""

_GROUPS: tuple[tuple[str, str, SettingGroup], ...] = (
    ("Broker", "`kafkalite broker --config FILE --override NAME=VALUE`.", BROKER_SETTINGS),
    (
        "Topic",
        "`kafkalite topics create --config NAME=VALUE`, `kafkalite configs alter`; the defaults are the broker's.",
        TOPIC_SETTINGS,
    ),
    ("Producer", "`Producer({...})`, or keywords in snake case.", PRODUCER_SETTINGS),
    ("Consumer", "`Consumer({...})`, or keywords in snake case.", CONSUMER_SETTINGS),
    ("Consumer connector", "`ConsumerConnector({...})`, or keywords in snake case.", CONNECTOR_SETTINGS),
    ("Admin", "`Admin({...})`, or keywords in snake case.", ADMIN_SETTINGS),
    (
        "Security",
        "Settings of every client: `Producer`, `Consumer`, `ConsumerConnector`, `Admin`, the commands' "
        "`--command-config FILE`; in Spark with `kafka.` in front.",
        SettingGroup("security", SECURITY_SETTINGS),
    ),
    ("Spark reader", '`spark.read.format("kafkalite").option(NAME, VALUE)`, and `readStream`.', READER_OPTIONS),
    ("Spark writer", '`frame.write.format("kafkalite").option(NAME, VALUE)`, and `writeStream`.', WRITER_OPTIONS),
)


def protocol_page() -> str:
    """Return docs/protocol.md."""
    handlers.load()
    rows: list[str] = []
    for api in sorted(SERVED_APIS.values(), key=lambda api: api.key):
        summary = (inspect.getdoc(import_module(api.handler.__module__)) or "").partition("\n\n")[0]
        _, _, text = " ".join(summary.split()).partition(": ")
        versions = f"{api.min_version}-{api.max_version}"
        text = (text[:1].upper() + text[1:]).replace("``", "`")
        advertised = "no" if api.brokers_only else api.advertised_from
        row = f"| {api.key} | {api.name} | {versions} | {advertised} | {text} |\n"
        rows.append(row)
    rest = _PROTOCOL_REST.replace("{rights}", _rights_table())
    return GENERATED + _PROTOCOL_HEAD + "".join(rows) + _PROTOCOL_NOTES + rest


def _rights_table() -> str:
    """Return what each served API needs (``wire.rights``)."""
    lines = ["| key | API | needs |", "|---|---|---|"]
    for api in sorted(SERVED_APIS.values(), key=lambda api: api.key):
        needs = ["the connection of a broker"] if api.brokers_only else list(map(str, api.needs)) or ["nothing"]
        lines.append(f"| {api.key} | {api.name} | {'<br>'.join(needs)} |")
    return "\n".join(lines)


def configuration_page() -> str:
    """Return docs/configuration.md."""
    parts = [GENERATED, _CONFIGURATION_HEAD]
    for title, where, group in _GROUPS:
        parts.append(
            f"\n## {title}\n\n{where}\n\n| name | type | default | allowed | meaning |\n|---|---|---|---|---|\n"
        )
        # What every client has is told once.
        parts += [_row(setting) for setting in group if title == "Security" or setting not in SECURITY_SETTINGS]
        if group.without_effect:
            parts.append(
                "\nSettings of Apache Kafka that may be given and have no effect here; the log names them at start:\n\n"
            )
            parts += [f"- `{name}`: {why}\n" for name, why in group.without_effect.items()]
        if group.instead:
            parts.append("\nSettings of Apache Kafka that are an error here, and what to do instead:\n\n")
            parts += [f"- `{name}`: {what}\n" for name, what in group.instead.items()]
    return "".join(parts)


def _row(setting: Setting) -> str:
    names = "<br>".join(f"`{name}`" for name in (setting.name, *setting.synonyms))
    kind = ", ".join(filter(None, (setting.kind, setting.unit, "*dynamic*" if setting.dynamic else "")))
    default = setting.text(setting.default)
    shown = "-" if default is None else f"`{default}`" if default else "empty"
    cells = (names, kind, shown, _allowed(setting) or "-", setting.doc)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def _allowed(setting: Setting) -> str:
    if setting.choices is not None:
        return ", ".join(f"`{choice}`" if choice else "empty" for choice in setting.choices)
    if setting.form is not None:
        return setting.form[1]
    if setting.minimum is not None and setting.maximum is not None:
        return f"{setting.minimum} to {setting.maximum}"
    if setting.minimum is not None:
        return f"{setting.minimum} and more"
    return f"up to {setting.maximum}" if setting.maximum is not None else ""


_FILES_HEAD = """# Where things are

Every module of the package and the first lines of its docstring. How the parts work together:
[architecture.md](architecture.md).
"""
# One generated module an API; their names say everything.
_LISTED_AS_ONE = "wire/messages"


def files_page() -> str:
    """Return docs/files.md."""
    parts = [GENERATED, _FILES_HEAD]
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        name = folder.relative_to(PACKAGE).as_posix()
        docstring = _first_lines(folder / "__init__.py")
        parts.append(f"\n## `{'spark_kafkalite' if name == '.' else name}/`\n\n{docstring}\n")
        if name == _LISTED_AS_ONE:
            continue
        modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        if modules:
            parts.append("\n| file | what it owns |\n|---|---|\n")
            parts += [f"| `{path.name}` | {_first_lines(path)} |\n" for path in modules]
    return "".join(parts)


def _first_lines(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split()).replace("|", "\\|")


_WHEEL_OF_ANY_VERSION = re.compile(r"(?:\./)?spark_kafkalite-[^\s/`']*\.whl")


def with_this_wheel(text: str) -> str:
    """Return a page whose install commands name the wheel of this version."""
    return _WHEEL_OF_ANY_VERSION.sub(WHEEL, text)


def pages() -> dict[Path, str]:
    """Return every generated page by its path, and the other ones as this version has them."""
    written_by_hand = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")))
    return {path: with_this_wheel(path.read_text(encoding="utf-8")) for path in written_by_hand} | {
        DOCS / "protocol.md": protocol_page(),
        DOCS / "configuration.md": configuration_page(),
        DOCS / "files.md": files_page(),
    }


def stale_pages() -> dict[Path, str]:
    """Return the pages whose file is not what would be written, with what would be."""
    return {
        path: text for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 when a page is stale")
    if parser.parse_args().check:
        stale = stale_pages()
        for path in stale:
            print(f"{path.name} is stale: run scripts/generate_docs.py", file=sys.stderr)
        return 1 if stale else 0
    DOCS.mkdir(exist_ok=True)
    for path, text in stale_pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
