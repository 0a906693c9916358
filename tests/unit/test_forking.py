"""The fork server: a child is what a process of its own would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from spark_kafkalite.processes.child_process import ChildProcess
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until
from tests.pool.forking import ForkedProcess, real_starts, run_command
from tests.seeds import SOAK

pytestmark = [pytest.mark.skipif(SOAK, reason="the soak starts real processes")]


def child(directory: Path, program: str, *arguments: str, **options: object) -> ChildProcess:
    script = directory / "program.py"
    script.write_text(textwrap.dedent(program))
    return ChildProcess([sys.executable, str(script), *arguments], directory, "child", **options)  # type: ignore[arg-type]


def is_forked(process: ChildProcess) -> bool:
    return isinstance(process._process, ForkedProcess)


def test_a_child_has_its_arguments_environment_directory_and_files(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("what it reads")
    program = """
        import os, sys
        print(sys.argv[1:], os.environ["NAME"], os.getcwd(), sys.stdin.read(), __name__)
        print("to stderr", file=sys.stderr)
        sys.exit(3)
    """
    environment = {**os.environ, "NAME": "value"}
    process = child(tmp_path, program, "a", "b", environment=environment, working_directory=tmp_path, stdin_path=given)
    assert is_forked(process)
    assert process.wait(PATIENCE_S) == 3
    assert process.stdout_text() == f"['a', 'b'] value {tmp_path} what it reads __main__\n"
    assert process.stderr_path.read_text() == "to stderr\n"


@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
        ("import sys; sys.exit('a text')", 1, "a text"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("import atexit, sys; atexit.register(lambda: print('at the end', file=sys.stderr))", 0, "at the end"),
        (
            "import threading, time, sys\n"
            "threading.Thread(target=lambda: (time.sleep(0.05), print('a thread', file=sys.stderr))).start()",
            0,
            "a thread",
        ),
    ],
)
def test_a_child_ends_as_an_interpreter_does(tmp_path: Path, program: str, code: int, error: str) -> None:
    process = child(tmp_path, program)
    assert process.wait(PATIENCE_S) == code
    assert error in process.stderr_path.read_text()


def test_a_child_is_interrupted_and_leads_a_session_of_its_own(tmp_path: Path) -> None:
    process = child(tmp_path, "import time; print('runs', flush=True); time.sleep(1000)")
    wait_until(process.stdout_text, "the child's first line")
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    process.signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == -signal.SIGINT
    assert "KeyboardInterrupt" in process.stderr_path.read_text()


def test_children_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = f"""
        import os, signal, sys
        from pathlib import Path
        from tests.pool import forking
        from spark_kafkalite.processes.child_process import ChildProcess
        forking.install()
        sleeps = Path({str(tmp_path)!r}) / "sleeps.py"
        sleeps.write_text("import time; time.sleep(1000)")
        process = ChildProcess([sys.executable, str(sleeps)], Path({str(tmp_path)!r}), "grandchild")
        print(process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    grandchild = Path("/proc") / done.stdout.strip()
    wait_until(lambda: not grandchild.exists(), "the end of the child of a killed process")


def test_some_starts_are_real(tmp_path: Path) -> None:
    """Where the interpreter reads a variable at its start, where a test asks for it, and what is not Python."""
    with real_starts():
        assert not is_forked(child(tmp_path, "pass"))
    assert not is_forked(child(tmp_path, "pass", environment={**os.environ, "KAFKALITE_PURE_PYTHON": "1"}))
    elsewhere = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert not is_forked(child(tmp_path, "pass", environment=elsewhere))
    assert not is_forked(ChildProcess(["true"], tmp_path, "true"))
    assert is_forked(child(tmp_path, "pass"))


def test_a_forked_child_imports_from_the_project_wherever_it_works(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    program = "import os, tests.paths; print(tests.paths.PROJECT, os.environ['PYTHONPATH'])"
    process = child(tmp_path, program, environment=environment, working_directory=tmp_path)
    assert is_forked(process)
    assert process.wait(PATIENCE_S) == 0
    assert process.stdout_text() == f"{PROJECT} {PROJECT}\n"


def test_a_command_is_run_to_its_end() -> None:
    done = run_command("dump-log", "no-such-file")
    assert done.returncode != 0
    assert "no-such-file" in done.stderr
