import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from tests.patience import PATIENCE_S, wait_until
from tests.pool.process_tree import has_ended


def python(directory: Path, program: str) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", textwrap.dedent(program)], directory, "child")


def wait_until_ended(pid: int) -> None:
    wait_until(lambda: has_ended(pid), f"the end of process {pid}")


def test_output_and_exit_code_are_kept(tmp_path: Path) -> None:
    child = python(tmp_path, "import sys; print('said'); print('warned', file=sys.stderr); sys.exit(3)")
    assert child.wait(PATIENCE_S) == child.returncode == 3
    assert child.stdout_text() == "said\n"
    assert child.stderr_path.read_text() == "warned\n"
    assert "said" in child.tail()
    assert "warned" in child.tail()


def test_waiting_for_a_condition_of_a_child_that_ends_shows_why_it_ended(tmp_path: Path) -> None:
    child = python(tmp_path, "raise SystemExit('the disk is gone')")
    with pytest.raises(ChildFailed, match=r"exit code 1 before serving(.|\n)*the disk is gone"):
        child.wait_until(lambda: False, 10, "serving")


def test_waiting_has_an_end(tmp_path: Path) -> None:
    child = python(tmp_path, "import time; time.sleep(60)")
    try:
        with pytest.raises(ChildFailed, match=r"not serving within 0.05 s"):
            child.wait_until(lambda: False, 0.05, "serving")
        with pytest.raises(ChildFailed, match=r"did not end within 0.05 s"):
            child.wait(0.05)
    finally:
        child.kill()
    assert child.returncode == -signal.SIGKILL


def test_all_threads_of_a_paused_child_stand_still(tmp_path: Path) -> None:
    child = python(
        tmp_path,
        """
        import threading, time

        def work():
            while True:
                time.sleep(0)

        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        print("ready", flush=True)
        time.sleep(600)
        """,
    )
    child.wait_until(lambda: "ready" in child.stdout_text(), PATIENCE_S, "being ready")
    for _ in range(20):
        child.pause()
        states = [
            path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{child.pid}/task").glob("*/stat")
        ]
        assert states == ["T"] * 5
        child.signal(signal.SIGCONT)
    child.kill()
    child.pause()


def test_kill_takes_its_children_too(tmp_path: Path) -> None:
    child = python(
        tmp_path,
        """
        import subprocess, sys
        grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
        print(grandchild.pid, flush=True)
        grandchild.wait()
        """,
    )
    child.wait_until(lambda: child.stdout_text().endswith("\n"), PATIENCE_S, "up")
    child.kill()
    wait_until_ended(int(child.stdout_text()))
    child.kill()  # a second time does nothing


def test_a_child_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    started: list[ChildProcess] = []
    thread = threading.Thread(target=lambda: started.append(python(tmp_path, "print('up', flush=True); input()")))
    thread.start()
    thread.join()
    (child,) = started
    code = child.wait(PATIENCE_S)  # stdin is empty, so input() raises; a death signal of the thread would give -9
    assert (child.stdout_text(), code) == ("up\n", 1)


@pytest.mark.parametrize("how", ["exit", "exception", "SIGKILL"])
def test_no_child_outlives_its_parent(tmp_path: Path, how: str) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import sys
                from pathlib import Path
                from spark_kafkalite.processes.child_process import ChildProcess
                child = ChildProcess(["sleep", "60"], Path(sys.argv[1]), "child")
                print(child.pid, flush=True)
                sys.stdin.read()
                if sys.argv[2] == "exception":
                    raise RuntimeError("on purpose")
                """
            ),
            str(tmp_path),
            how,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not has_ended(pid)
        if how == "SIGKILL":
            os.kill(parent.pid, signal.SIGKILL)
        parent.stdin.close()
    wait_until_ended(pid)
