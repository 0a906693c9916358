import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.cli import jobs
from spark_kafkalite.cli.main import COMMANDS, kafkalite, run
from tests.paths import PROJECT


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """A broker's start goes without the collector; the tests that follow need it."""
    yield
    gc.enable()


def test_every_command_has_help_with_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert run([name, "--help"]) == 0
        out = capsys.readouterr().out
        assert "Examples:" in out
        command = kafkalite.get_command(None, name)  # type: ignore[arg-type, attr-defined]
        assert command.help


def test_the_list_of_commands_says_what_the_commands_say() -> None:
    # The texts stand in main.py so that showing the list imports nothing; they must not drift apart in kind.
    for name, (_, text) in COMMANDS.items():
        assert text.endswith("."), name


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["brokr"], 2, "did you mean 'broker'?"),
        (["xyz"], 2, "the commands are broker, registry"),
        (["topics", "creat"], 2, "topics has no action 'creat'; the actions are alter, create,"),
        (["topics", "create"], 2, "--topic"),
        (["consume", "--topic", "t", "--from-beginning", "--offset", "1"], 2, "exclude each other"),
        (["consume", "--topic", "t", "--formatter-property", "print.epoch=true"], 2, "print.epoch: not known"),
        (["produce"], 2, "--topic is missing"),
        (["broker", "--override", "nonsense"], 2, "not of the form name=value"),
        (["broker", "--override", "log.retenton.ms=5"], 2, "did you mean 'log.retention.ms'?"),
        (["broker", "--config", "/nonexistent/file"], 2, "/nonexistent/file"),
        (["dump-log", "/nonexistent"], 1, "no such file or directory"),
        (["jobs", "path", "nope"], 2, "nope"),
        (["jobs", "run", "nope"], 2, "nope"),
    ],
)
def test_wrong_usage_is_said_and_has_its_code(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_the_help_of_jobs_run_and_that_of_a_job_are_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "run", "--help"]) == 0
    assert "jobs run [OPTIONS] JOB [JOB_OPTIONS]..." in capsys.readouterr().out
    assert run(["jobs", "run", "replay", "--help"]) == 0
    assert "--from-timestamp" in capsys.readouterr().out


def test_bad_broker_settings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "--override", "log.segment.bytes=big"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kafkalite ")


def test_a_broker_loads_neither_clients_nor_arrow() -> None:
    script = (
        "import sys; from spark_kafkalite.cli.main import run\n"
        "code = run(['broker', '--override', 'listeners=PLAINTEXT://0.0.0.0:1'])\n"
        "import spark_kafkalite.broker.server\n"
        "heavy = [name for name in sys.modules if name.split('.')[0] in ('pyarrow', 'rich', 'kazoo', 'numpy')\n"
        "         or name.startswith(('spark_kafkalite.client', 'spark_kafkalite.spark', 'spark_kafkalite.testing'))]\n"
        "print(code, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PROJECT, check=True)
    assert done.stdout.strip() == "2 []"


def test_the_jobs_scripts_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    for name in jobs.JOBS:
        assert run(["jobs", "path", name]) == 0
        assert Path(capsys.readouterr().out.strip()).read_text().startswith('"""')
    assert run(["jobs", "list"]) == 0
    assert "hadoop_load" in capsys.readouterr().out


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_a_full_disk_does_not_take_is_one_line(unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spark_kafkalite.cli", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (1, b"kafkalite: No space left on device\n")
