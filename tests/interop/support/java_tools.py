"""Apache Kafka's command-line tools, unmodified, many in one JVM: starting one takes most of a tool's time."""

from __future__ import annotations

import base64
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, JavaToolFailed, java_arguments
from tests.interop.support.java_clients import JAVA_SOURCES, compile_java
from tests.lab.apache_kafka import logging_options

_TIMEOUT_S: Final = 100


class JavaTools:
    """The compiled program of ``java/ToolRunner.java``, running; a context manager."""

    def __init__(self, directory: Path) -> None:
        """Compile it and start it; ``directory`` has its errors."""
        class_path = compile_java(JAVA_SOURCES / "ToolRunner.java")
        options = (*SHORT_LIVED_OPTIONS, "-Xmx512m", *logging_options())
        self._errors = (directory / "stderr").open("wb")
        self._process = subprocess.Popen(
            java_arguments(class_path, "ToolRunner", jvm_options=options),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip

    def run(
        self, main_class: str, *arguments: str, input: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end; the meanings are those of ``tests.lab.apache_kafka.kafka_tool``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        overdue = threading.Timer(_TIMEOUT_S, self._process.kill)
        overdue.start()
        try:
            self._process.stdin.write("\t".join([main_class, *(_encoded(text) for text in (input, *arguments))]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            overdue.cancel()
        if not answer:
            raise JavaToolFailed(f"{main_class} {' '.join(arguments)}: not done after {_TIMEOUT_S} s, or the JVM died")
        code, stdout, stderr = answer.rstrip("\n").split("\t")
        done = subprocess.CompletedProcess([main_class, *arguments], int(code), _decoded(stdout), _decoded(stderr))
        if check and done.returncode != 0:
            raise JavaToolFailed(f"{main_class} {' '.join(arguments)}: exit code {code}\n{done.stdout}{done.stderr}")
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def _encoded(text: str) -> str:
    return "=" + base64.b64encode(text.encode()).decode("ascii")


def _decoded(field: str) -> str:
    return base64.b64decode(field[1:]).decode()
