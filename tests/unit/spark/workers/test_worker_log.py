"""The lines of Spark's Python processes: their shape, and how often the same text is shown."""

import logging
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_kafkalite.spark.watching.post_box import PostedWarning
from spark_kafkalite.spark.workers import worker_log
from spark_kafkalite.spark.workers.worker_log import SINK, SOURCE, SaidBefore, WorkerLog, say, speak_of

LOGGER = "spark_kafkalite.spark"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["in files", "in memory"])
def said(request, tmp_path, clock):
    return SaidBefore(tmp_path / "said" if request.param == "in files" else None, clock)


@pytest.fixture
def shown(said):
    """What a process writes, line by line."""
    lines: list[str] = []
    handler = WorkerLog(said, lines.append)
    logger = logging.getLogger("spark_kafkalite")
    logger.addHandler(handler)
    yield SimpleNamespace(lines=lines, handler=handler)
    logger.removeHandler(handler)


def test_a_line_has_the_shape_of_sparks_log(shown):
    shown.handler.speak_of(SOURCE, "subscribe=events")
    logging.getLogger(LOGGER).warning("it is\n  %s", "so")
    logging.getLogger("spark_kafkalite.client").error("and so")
    logging.getLogger(LOGGER).info("and this is not shown")
    moment = r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d"
    assert len(shown.lines) == 2
    assert re.fullmatch(rf"{moment} WARN KafkaliteSource: \[subscribe=events\] it is so\n", shown.lines[0])
    assert re.fullmatch(rf"{moment} ERROR KafkaliteSource: \[subscribe=events\] and so\n", shown.lines[1])


def test_what_a_kept_clients_thread_says_is_the_clients_and_no_querys(shown):
    shown.handler.speak_of(SINK, "topic=t")
    thread = threading.Thread(target=logging.getLogger("spark_kafkalite.client").warning, args=("no broker answers",))
    thread.start()
    thread.join()
    logging.getLogger(LOGGER).warning("slow")
    assert [line.split(" ", 2)[2] for line in shown.lines] == [
        "WARN KafkaliteClient: no broker answers\n",
        "WARN KafkaliteSink: [topic=t] slow\n",
    ]


def test_a_text_is_shown_once_a_minute_and_then_with_its_repeats(shown, clock):
    for attempt in range(1, 8):
        # Numbers do not make it another text, but what is asked for does.
        logging.getLogger(LOGGER).warning("cannot look up %s (attempt %d, %.0f s)", "x", attempt, clock.now_s)
        clock.now_s += 15
    assert [line.partition("cannot")[2] for line in shown.lines] == [
        " look up x (attempt 1, 1000 s)\n",
        " look up x (attempt 5, 1060 s) (and 3 times more since it was last shown)\n",
    ]
    logging.getLogger(LOGGER).warning("cannot look up %s (attempt %d, %.0f s)", "y", 1, clock.now_s)
    shown.handler.speak_of(SOURCE, "subscribe=other")
    logging.getLogger(LOGGER).warning("cannot look up %s (attempt %d, %.0f s)", "y", 1, clock.now_s)
    assert len(shown.lines) == 4


def test_what_is_said_once_is_never_said_again(shown, clock):
    for _ in range(3):
        say(["option x is unknown"], once=True)
        clock.now_s += 3_600
    assert len(shown.lines) == 1


def test_processes_of_one_host_say_it_together_once(tmp_path: Path, clock):
    directory = tmp_path / "said"
    processes = [SaidBefore(directory, clock) for _ in range(4)]
    answers: list[int | None] = []
    barrier = threading.Barrier(len(processes))

    def run(process: SaidBefore) -> None:
        barrier.wait()
        for _ in range(50):
            answers.append(process.held_back("text"))

    threads = [threading.Thread(target=run, args=(each,)) for each in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each for each in answers if each is not None] == [0]
    clock.now_s += 60
    assert processes[0].held_back("text") == 199


def test_the_files_are_bounded(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(worker_log, "_SLOTS", 8)
    said = SaidBefore(tmp_path)
    assert {said.held_back(f"text {number}") for number in range(100)} == {0}
    assert len(list(tmp_path.iterdir())) <= 8
    assert all(path.stat().st_size < 200 for path in tmp_path.iterdir())


@pytest.mark.parametrize("spoilt", ["", "no numbers here", "\x00\xff"])
def test_a_file_that_is_no_use_or_a_directory_that_is_gone_is_no_reason_to_be_silent(tmp_path, clock, spoilt):
    said = SaidBefore(tmp_path / "said", clock)
    assert said.held_back("text") == 0
    for path in (tmp_path / "said").iterdir():
        path.write_text(spoilt)
    assert said.held_back("text") == 0
    gone = SaidBefore(tmp_path / "not" / "there", clock)
    assert gone.held_back("text") == 0
    assert gone.held_back("text") is None


def test_what_is_shown_is_handed_on(tmp_path, clock):
    handed: list[PostedWarning] = []
    handler = WorkerLog(SaidBefore(None, clock), lambda line: None, handed.append)
    handler.speak_of(SOURCE, "subscribe=t")
    record = logging.LogRecord(LOGGER, logging.WARNING, "", 0, "text %s", ("x",), None)
    for _ in range(2):
        handler.handle(record)
    assert handed == [PostedWarning("KafkaliteSource", "subscribe=t", "WARN", "text x")]


def test_lines_of_tasks_are_all_shown_and_not_handed_on(clock):
    lines: list[str] = []
    handed: list[PostedWarning] = []
    handler = WorkerLog(SaidBefore(None, clock), lines.append, handed.append)
    handler.speak_of(SOURCE, "subscribe=t")
    for count in (5, 5):
        handler.handle(logging.LogRecord(LOGGER, logging.INFO, "", 0, "%d records", (count,), None))
    assert [line.split(" ", 2)[2] for line in lines] == ["INFO KafkaliteSource: [subscribe=t] 5 records\n"] * 2
    assert handed == []


def test_the_applications_logging_is_left_alone():
    before = list(logging.getLogger("spark_kafkalite").handlers)
    speak_of(SINK, "topic=t")
    assert logging.getLogger("spark_kafkalite").handlers == before


def test_a_process_of_spark_has_one_handler(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon")))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    logger = logging.getLogger("spark_kafkalite")
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    try:
        for _ in range(2):
            speak_of(SINK, "topic=" + "t" * 300)
            logger.warning("here")
        assert len([each for each in logger.handlers if isinstance(each, WorkerLog)]) == 1
    finally:
        for handler in [each for each in logger.handlers if isinstance(each, WorkerLog)]:
            logger.removeHandler(handler)
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert f" WARN KafkaliteSink: [topic={'t' * 194}...] here" in written
    assert len(list((tmp_path / "kafkalite-said").iterdir())) == 1
