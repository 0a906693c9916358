"""How a streaming query of a job ends: with its query, by Ctrl-C, or by SIGTERM."""

import os
import signal

import pytest

from spark_kafkalite.jobs.copying.streaming import await_end
from spark_kafkalite.jobs.program.stopping import Stopped


class Query:
    """A query that goes on until it is stopped; ``looks`` is what each look at it does."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.stopped = False

    def awaitTermination(self, timeout):  # noqa: N802
        assert not self.stopped
        return self.looks.pop(0)()

    def stop(self):
        self.stopped = True


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    return False


def test_ctrl_c_stops_the_query_and_is_no_error():
    before = signal.getsignal(signal.SIGINT)
    query = Query(lambda: False, press_ctrl_c)
    await_end(query)
    assert query.stopped
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_stops_the_query_and_then_the_job():
    before = signal.getsignal(signal.SIGTERM)
    query = Query(lambda: False, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped):
        await_end(query)
    assert query.stopped
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_query_that_ends_is_left_as_it_is():
    query = Query(lambda: False, lambda: True)
    await_end(query)
    assert not query.stopped
    assert not query.looks


def test_a_query_that_fails_says_so_and_leaves_ctrl_c_as_it_was():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError):
        await_end(Query(lambda: 1 // 0))
    assert signal.getsignal(signal.SIGINT) is before
