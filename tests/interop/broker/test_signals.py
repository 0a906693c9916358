"""SIGHUP and SIGUSR1 at processes: brokers and the registry read settings again, log their stacks, and go on."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from tests.patience import PATIENCE_S, wait_until


class Started:
    """A command that has printed its ready line."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, address: str) -> None:
        self.process = process
        self.log = log
        self.address = address

    def lines(self, part: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if part in line]


@contextmanager
def started(
    tmp_path: Path,
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    terminal: bool = False,
    program: tuple[str, ...] = ("-m", "spark_kafkalite.cli"),
) -> Iterator[Started]:
    log = tmp_path / "log"
    # At a terminal: in a session of its own, whose terminal its standard input becomes.
    prefix = ["setsid", "--ctty"] if terminal else []
    with (
        log.open("wb") as err,
        subprocess.Popen(
            [*prefix, sys.executable, *program, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=err,
            cwd=tmp_path,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().decode()
            assert " ready on " in ready, log.read_text()
            yield Started(process, log, ready.split()[-1])
        finally:
            process.kill()


@pytest.mark.parametrize(
    "command",
    [("broker", "--override", "listeners=PLAINTEXT://127.0.0.1:0"), ("registry", "--data", "r", "--port", "0")],
    ids=["broker", "registry"],
)
def test_signals_that_come_while_modules_are_loaded_are_handled_later(tmp_path: Path, command: tuple[str, ...]) -> None:
    # The first thing that a command loads, then the signals, then all else.
    early = (
        "import os, signal, sys\n"
        f"sys.argv = ['kafkalite', *{command!r}]\n"
        "import spark_kafkalite.cli\n"
        "os.kill(os.getpid(), signal.SIGHUP); os.kill(os.getpid(), signal.SIGUSR1)\n"
        "from spark_kafkalite.cli.main import main\n"
        "main()"
    )
    with started(tmp_path, program=("-c", early)) as process:
        wait_until(lambda: process.lines(" SIGUSR1: the stacks of "), "the stacks")
        wait_until(lambda: process.lines(" SIGHUP: "), "the hang-up")
        # And those that come later.
        process.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(process.lines(" SIGHUP: ")) == 2, "the second hang-up")


def write(path: Path, **settings: object) -> None:
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "data"}
    given |= {name.replace("_", "."): str(value) for name, value in settings.items()}
    path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))


def test_a_broker_reads_its_file_again_at_sighup(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    write(file, log_retention_ms=111_000)
    with (
        started(tmp_path, "broker", "--config", "broker.properties") as broker,
        Admin(bootstrap_servers=broker.address) as admin,
    ):
        admin.create_topic("t")

        def retention() -> str | None:
            return admin.describe_configs(topic="t")["retention.ms"].value

        assert retention() == "111000"
        write(file, log_retention_ms=222_000, num_partitions=7)
        broker.process.send_signal(signal.SIGHUP)
        (line,) = wait_until(lambda: broker.lines("SIGHUP"), "the line about the file")
        assert line.endswith(
            "has read its settings: changed log.retention.ms=222000 (was 111000); "
            "a restart is needed for num.partitions"
        )
        assert " INFO " in line and retention() == "222000"
        # A file that cannot be used changes nothing, and is one line.
        for text, problem in (
            ("log.retention.ms=3\nno.such.setting=1\n", "unknown broker setting 'no.such.setting'"),
            ("log.retention.ms=3\nonly a name\\u12\n", "broker.properties, line 2"),
        ):
            file.write_text(text)
            broker.process.send_signal(signal.SIGHUP)
            (line,) = wait_until(lambda problem=problem: broker.lines(problem), problem)  # type: ignore[misc]
            assert " ERROR " in line and "the settings stay as they are" in line
        file.unlink()
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(broker.lines(" ERROR ")) == 3, "the line about the missing file")
        assert retention() == "222000" and "Traceback" not in broker.log.read_text()
        broker.process.terminate()
        assert broker.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("command", [["broker", "--override", "listeners=PLAINTEXT://127.0.0.1:0"], ["registry"]])
def test_stacks_are_logged_at_sigusr1_and_a_command_without_a_file_goes_on(tmp_path: Path, command: list[str]) -> None:
    if command == ["registry"]:
        command = ["registry", "--data", "data", "--port", "0"]
    with started(tmp_path, *command) as running:
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: running.lines("SIGHUP: "), "the line about SIGHUP")
        running.process.send_signal(signal.SIGUSR1)
        (heading,) = wait_until(lambda: running.lines("SIGUSR1: the stacks of"), "the stacks")
        counts = re.search(r"of (\d+) threads and (\d+) tasks", heading)
        assert counts is not None and int(counts[1]) >= 1 and int(counts[2]) >= 1
        (main,) = wait_until(lambda: running.lines(" thread MainThread: "), "the main thread's stack")
        assert " < " in main and re.search(r"\(\w+/\w+\.py:\d+\)", main)
        assert wait_until(lambda: re.search(r" (\d+ )?tasks? \S+ \(", running.log.read_text()), "a task's stack")
        running.process.terminate()
        assert running.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("command", ["broker", "registry"])
def test_a_command_at_a_terminal_ends_in_order_when_the_terminal_is_gone(tmp_path: Path, command: str) -> None:
    arguments = {
        "broker": ["--override", "listeners=PLAINTEXT://127.0.0.1:0", "--override", "log.dirs=data"],
        "registry": ["--data", "data", "--port", "0"],
    }[command]
    ours, theirs = pty.openpty()
    try:
        with started(tmp_path, command, *arguments, stdin=theirs, terminal=True) as running:
            os.close(theirs)
            os.close(ours)
            ours = -1
            assert running.process.wait(PATIENCE_S) == 0
            assert running.lines("is gone")
    finally:
        if ours >= 0:
            os.close(ours)
