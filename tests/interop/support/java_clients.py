"""Apache Kafka's Java clients, compiled and run by tests: many commands in one JVM, because starting one takes long."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import subprocess
import tempfile
from pathlib import Path

from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_command
from tests.interop.support.records import Header, Read, Sent
from tests.lab import jars
from tests.lab.apache_kafka import logging_options
from tests.lab.java import run_java
from tests.patience import PATIENCE_S

JAVA_SOURCES = Path(__file__).parent / "java"
_SOURCE = JAVA_SOURCES / "InteropClient.java"


def compile_java(source: Path, *more: jars.JarSet) -> str:
    """Compile a program against Apache Kafka's jars, and ``more``; return the class path to run it with.

    What was compiled lies next to the cache of jars, so that each program is compiled once on a machine.
    """
    class_path = jars.class_path(*(jars.fetch(each) for each in (jars.APACHE_KAFKA, *more)))
    java = java_command()
    assert java is not None
    compiler = Path(java).resolve().with_name("javac")
    key = hashlib.blake2b(f"{compiler}\n{class_path}\n".encode() + source.read_bytes(), digest_size=8).hexdigest()
    compiled = jars.cache_directory().parent / "compiled" / f"{source.stem}-{key}"
    if not compiled.exists():
        compiled.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=compiled.parent) as scratch:
            options = [f"-J{option}" for option in SHORT_LIVED_OPTIONS]
            subprocess.run(
                [str(compiler), *options, "-nowarn", "-cp", class_path, "-d", f"{scratch}/classes", str(source)],
                check=True, capture_output=True, text=True, timeout=5 * PATIENCE_S,
            )  # fmt: skip
            # Another process may have been faster.
            with contextlib.suppress(OSError):
                Path(scratch, "classes").rename(compiled)
    # Kafka's jars come first, as in the archive of their classes.
    return f"{class_path}:{compiled}"


class JavaClients:
    """The compiled program of ``java/InteropClient.java``."""

    def __init__(self, directory: Path) -> None:
        """Compile it; ``directory`` has its input."""
        self._directory = directory
        self._class_path = compile_java(_SOURCE)
        self._runs = 0

    def run(self, bootstrap: str, commands: list[str]) -> dict[str, list[str]]:
        """Run commands in one JVM; return each one's output lines."""
        self._runs += 1
        file = self._directory / f"commands-{self._runs}"
        file.write_text("\n".join(commands) + "\n", encoding="utf-8")
        done = run_java(
            self._class_path, "InteropClient", bootstrap, str(file),
            jvm_options=("-Xmx256m", *logging_options()),
        )  # fmt: skip
        outputs: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in done.stdout.splitlines():
            if line.startswith("done "):
                outputs[line.removeprefix("done ")] = lines
                lines = []
            else:
                lines.append(line)
        assert list(outputs) == list(dict.fromkeys(commands)), done.stderr
        return outputs

    def write_records(self, name: str, records: list[Sent]) -> Path:
        """Write what a produce command is to send."""
        path = self._directory / name
        rows = []
        for record in records:
            fields = [_text(record.key), _text(record.value), str(record.timestamp_ms)]
            for header, value in record.headers:
                fields += [_text(header.encode()), _text(value)]
            rows.append("\t".join(fields))
        path.write_text("\n".join(rows) + "\n", encoding="ascii")
        return path


def read_records(lines: list[str]) -> list[Read]:
    """Return what a consume command printed."""
    found = []
    for line in lines:
        offset, kind, key, value, timestamp, *headers = line.split("\t")
        pairs: list[Header] = [
            ((_bytes(name) or b"").decode(), _bytes(header))
            for name, header in zip(headers[::2], headers[1::2], strict=True)
        ]
        found.append(
            Read(int(offset), kind == "LogAppendTime", int(timestamp), _bytes(key), _bytes(value), tuple(pairs))
        )
    return found


def _text(data: bytes | None) -> str:
    return "-" if data is None else "=" + base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text[1:])
