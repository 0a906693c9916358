"""A request to stop that comes at any moment of the wait for it."""

from __future__ import annotations

import subprocess
import sys
import threading

from spark_kafkalite.cli.stop_request import StopRequest
from tests.patience import PATIENCE_S

# At one step after the other of the wait, a step being an instruction of Python.
_SIGNALLED = """
import os, signal, sys
from spark_kafkalite.cli.stop_request import StopRequest

def step(frame, event, _):
    global left
    frame.f_trace_opcodes = True
    if event == "opcode":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
    return step

steps = left = 0
while left <= 0:
    stopping = StopRequest()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    steps += 1
    left = steps
    sys.settrace(step)
    stopping.wait(0.001)
    sys.settrace(None)
print(steps)
"""


def output(program: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    )
    return ended.stdout


def test_a_signal_at_any_step_of_a_wait_ends_it() -> None:
    # With threading.Event in place of StopRequest the process hangs: its ``set`` needs the lock that ``wait`` holds.
    assert int(output(_SIGNALLED)) > 10


# The kernel gives this signal to a thread that is not the main one. To the main thread, which sleeps, it is as one that
# came just before the sleep.
_SIGNALLED_ELSEWHERE = """
import signal, threading
from spark_kafkalite.cli.stop_request import StopRequest

def ask():
    while not ended.wait(0.001):
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

for timeout_s in (None, 1e6):
    stopping, ended = StopRequest(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    thread = threading.Thread(target=ask)
    thread.start()
    print(stopping.wait(timeout_s))
    ended.set()
    thread.join()
"""


def test_a_signal_that_does_not_interrupt_the_main_thread_ends_its_wait() -> None:
    # With a SimpleQueue in place of the pipe the process hangs.
    assert output(_SIGNALLED_ELSEWHERE) == "True\nTrue\n"


def test_a_request_is_seen_before_and_in_a_wait() -> None:
    stopping = StopRequest()
    assert not stopping.wait(0.001) and not stopping.came
    stopping.set()
    stopping.set()
    assert stopping.wait() and stopping.wait(0.001) and stopping.came
    # More often than a pipe has room for, and from another thread while the wait sleeps.
    for _ in range(100_000):
        stopping.set()
    stopping = StopRequest()
    threading.Timer(0.01, stopping.set).start()
    assert stopping.wait()
