"""Clients that run as programs of their own: how they are started, and what they say in lines of JSON."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments
from tests.lab import jars
from tests.lab.apache_kafka import logging_options
from tests.patience import wait_until

KAFKA_PYTHON = [sys.executable, str(Path(__file__).with_name("kafka_python_program.py"))]
_LOOK_EVERY_S = 0.01


def java_tool(main_class: str, arguments: Mapping[str, str], *flags: str) -> list[str]:
    """Return the command of one of Kafka's Java tools."""
    return [
        *java_arguments(
            jars.class_path(jars.fetch(jars.APACHE_KAFKA)),
            main_class,
            jvm_options=(*SHORT_LIVED_OPTIONS, "-Xmx128m", *logging_options()),
        ),
        *flags,
        *(part for pair in arguments.items() for part in pair),
    ]


def follow(
    command: list[str],
    directory: Path,
    name: str,
    hear: Callable[[dict[str, Any]], None],
    stopping: Callable[[], bool],
) -> None:
    """Run a program until it is to stop, and then until its end; ``hear`` gets each line that it says."""
    program = ChildProcess(command, directory, name)
    pending = ""

    def has_ended() -> bool:
        """Hear what it has said; return whether it had ended before."""
        nonlocal pending
        running = program.running
        *lines, pending = (pending + output.read()).split("\n")
        for line in lines:
            hear(json.loads(line))
        return not running

    try:
        with program.stdout_path.open(encoding="utf-8") as output:
            while not stopping():
                assert not has_ended(), program.tail()
                time.sleep(_LOOK_EVERY_S)
            # It finishes what it has begun, and says what came of it.
            program.signal(signal.SIGTERM)
            wait_until(has_ended, program.tail, poll_s=_LOOK_EVERY_S)
    finally:
        program.kill()
