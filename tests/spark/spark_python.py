"""Python as tests have Spark start it: forked from a process that has imported PySpark and the source.

Spark starts a Python process for each query that reads a stream, and one for each kind of work in a session. To import
PySpark, pyarrow and the source costs each of them 0.45 CPU seconds. This program imports nothing: it hands its streams
to the server (``python_server.py``), waits for the end of the forked process, and ends as that did. If it is killed,
the server ends the forked process.

It starts a real Python where there is no server, for what is no module of PySpark, and where the server refuses.

It runs without ``site``. So only modules that are part of the interpreter are here.
"""

import _socket
import os
import signal
import sys

# The variable with the address of the server.
ADDRESS = "KAFKALITE_TESTS_SPARK_PYTHON"


def main(arguments: list[str]) -> None:
    environment = dict(os.environ)
    # Spark puts archives of itself before PySpark from site-packages. Python keeps no compiled modules of an archive,
    # so that each process would compile PySpark for itself.
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if not _is_archive(entry)]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    address = environment.pop(ADDRESS, None)
    if address is not None and arguments[:1] == ["-m"] and arguments[1].startswith("pyspark."):
        code = _forked(address, [*arguments[1:], os.getcwd(), str(os.getppid())], environment)
        if code is not None:
            if code < 0:
                os.kill(os.getpid(), -code)
            os._exit(code)
    os.execve(sys.executable, [sys.executable, *arguments], environment)


def _is_archive(entry: str) -> bool:
    directory, name = os.path.split(entry)
    of_python = directory.endswith("/python/lib") and (name == "pyspark.zip" or name.startswith("py4j-"))
    return of_python or (directory.endswith("/jars") and name.startswith("spark-core_"))


def _forked(address: str, words: list[str], environment: dict[str, str]) -> int | None:
    """Have a module run with its arguments in a directory, below a JVM. Return the exit code, None if it is refused."""
    words = [str(len(words)), *words, *(f"{name}={value}" for name, value in environment.items())]
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect(address)
    server.sendmsg([os.fsencode("\0".join(words))], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    if server.recv(16) != b"forked":
        return None
    # Spark waits for their ends.
    for number in range(3):
        os.close(number)
    code = server.recv(16)
    # The server ends before the forked process only if both are killed.
    return int(code) if code else -signal.SIGKILL


if __name__ == "__main__":
    main(sys.argv[1:])
