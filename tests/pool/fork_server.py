"""A process that has imported the program and forks it: a start costs 0.02 CPU seconds then, instead of 0.4.

``forking.ForkServer`` starts one for each pytest process and sends it requests over a socket. A request names a module
or a script, its arguments, environment and working directory. It brings four descriptors: stdin, stdout, stderr, and
the pipe on which the server answers with the child's process id and later with its exit code. The server has one
thread. It ends, and its children with it, when the socket is closed.

A forked child is what ``python -m MODULE`` would be, but for what lies before ``main``: the command line that /proc
shows, the memory that it shares with the server, and variables that the interpreter reads at its start. Tests that are
about these start real processes (``forking.real_starts``).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any, Final, NoReturn

# What brokers, registries and commands import. None of it may start a thread: pyarrow does.
_PRELOADED: Final = (
    "spark_kafkalite.cli.main",
    "spark_kafkalite.cli.broker",
    "spark_kafkalite.cli.registry",
    "spark_kafkalite.cli.topics",
    "spark_kafkalite.cli.configs",
    "spark_kafkalite.cli.produce",
    "spark_kafkalite.cli.consume",
    "spark_kafkalite.cli.groups.command",
    "spark_kafkalite.cli.offsets.command",
    "spark_kafkalite.cli.cluster.command",
    "spark_kafkalite.broker.server",
    "spark_kafkalite.registry.served.server",
    "spark_kafkalite.registry.zookeeper",
)
_LARGEST_REQUEST: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Child(Exception):
    """Raised in a forked child, to leave the server's loop behind; ``request`` is what it is to run."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request


def main(control: int) -> NoReturn:
    """Serve requests from the socket with this descriptor until it is closed."""
    for module in _PRELOADED:
        importlib.import_module(module)
    from spark_kafkalite.broker.requests import handlers

    handlers.load()
    gc.collect()
    gc.freeze()
    try:
        _serve(socket.socket(fileno=control))
    except Child as child:
        request = child.request
    else:
        os._exit(0)
    become(request)


def _serve(requests: socket.socket) -> None:
    """Fork a child for each request; report its end. Raises Child in the children."""
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    _report_end(selector, key)
                    continue
                message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
                if not message:
                    return
                *streams, status = descriptors
                # A lock that another thread holds would stay locked in the child for ever.
                assert len(os.listdir("/proc/self/task")) == 1, "the fork server has threads"
                server = os.getpid()
                if child := os.fork():
                    for stream in streams:
                        os.close(stream)
                    os.write(status, b"%d\n" % child)
                    selector.register(os.pidfd_open(child), selectors.EVENT_READ, (child, status))
                    continue
                selector.close()
                detach(server, streams)
                requests.detach()
                os.setsid()
                raise Child(json.loads(message))


def detach(server: int, streams: Sequence[int]) -> None:
    """Have a forked child end with its server, and leave it only its own streams of all descriptors."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)


def _report_end(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    child, status = key.data
    selector.unregister(key.fileobj)
    os.close(int(key.fd))
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Nobody reads it when the test has forgotten the child.
    with contextlib.suppress(BrokenPipeError):
        os.write(status, b"%d\n" % ended)
    os.close(status)


def become(request: dict[str, Any]) -> NoReturn:
    """Run the program as an interpreter of its own would, and end."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(write_through=unbuffered)  # type: ignore[attr-defined]
    sys.stderr.reconfigure(line_buffering=True, write_through=unbuffered)  # type: ignore[attr-defined]
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 0
    try:
        if request["module"]:
            sys.argv = [request["module"], *request["arguments"]]
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(request["arguments"])
            sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    # What the interpreter does at its end, without freeing every object.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main(int(sys.argv[1]))
