"""A Spark stream that reads the topic from its beginning, as a process of its own (``stream_program``)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.clients.client import Place
from tests.chaos.clients.readers import ChaosReader
from tests.chaos.history import Client
from tests.chaos.values import payload_of
from tests.paths import PROJECT


class SparkStream(ChaosReader):
    """One query without a restart: each batch is what follows the one before. It commits for its group to be seen."""

    def __init__(self, who: str, place: Place, group: str, directory: Path, *, fails_on_loss: bool = True) -> None:
        super().__init__(who, place)
        self._fails_on_loss = "true" if fails_on_loss else "false"
        self.group = group
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def description(self) -> Client:
        return Client(who=self.who, kind="member", group=self.group, drains=True)

    def run(self) -> None:
        checkpoint = self._directory / f"{self.place.topic}-{self.who}"
        command = [sys.executable, "-m", "tests.chaos.stream_program", self.place.bootstrap, self.place.topic]
        errors_path = checkpoint.with_suffix(".err")
        with (
            errors_path.open("wb") as errors,
            subprocess.Popen(
                [*command, self.group, str(checkpoint), self._fails_on_loss],
                cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            ) as process,
        ):  # fmt: skip
            assert process.stdout is not None
            self._process = process
            begun = time.monotonic()
            for line in process.stdout:
                self.note_rows(
                    begun, ((partition, offset, payload_of(name)) for partition, offset, name in json.loads(line))
                )
                begun = time.monotonic()
        if process.returncode != 0:
            self.problem = f"{self.who}: exit code {process.returncode}; see {errors_path}"

    def stop(self) -> None:
        super().stop()
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
