"""A request to stop that comes at any moment of the wait for it."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_signal_at_any_step_of_a_wait_ends_it() -> None:
    # With threading.Event in place of StopRequest the process hangs.
    done = subprocess.run([sys.executable, "-c", _SIGNALLED], stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True)
    assert int(done.stdout) > 10


def test_a_request_is_seen_before_and_in_a_wait() -> None:
    stopping = StopRequest()
    assert not stopping.wait(0.001) and not stopping.came
    stopping.set()
    stopping.set()
    assert stopping.wait() and stopping.wait(0.001) and stopping.came
