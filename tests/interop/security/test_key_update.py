"""A TLS 1.3 server that changes its keys, and asks for new ones, in the middle of a connection: OpenSSL's own."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import trustme

from spark_kafkalite.security.tls import TlsStream
from tests.unit.security.tls_pairs import trusting

pytestmark = [pytest.mark.debian]


class Server:
    """``openssl s_server``: what is written to it goes to the client, but for lines that are commands."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[bytes] = process.stdin
        self._output: IO[bytes] = process.stdout

    def says(self, line: bytes) -> None:
        self._input.write(line + b"\n")
        self._input.flush()

    def has_shown(self, part: bytes) -> bytes:
        """Wait for a line with this part."""
        for line in self._output:
            if part in line:
                return line
        raise AssertionError(f"the server ended before it showed {part!r}")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA, tmp_path: Path) -> Iterator[Server]:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl on the PATH (Debian package openssl)")
    pem = tmp_path / "server.pem"
    pem.write_bytes(authority.issue_cert("localhost").private_key_and_cert_chain_pem.bytes())
    process = subprocess.Popen(
        [program, "s_server", "-accept", "127.0.0.1:0", "-cert", pem, "-key", pem, "-tls1_3", "-num_tickets", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with process:
        try:
            yield Server(process)
        finally:
            process.kill()


def test_the_server_changes_keys_and_asks_for_new_ones(authority: trustme.CA, server: Server) -> None:
    port = int(server.has_shown(b"ACCEPT").rpartition(b":")[2])
    stream = TlsStream(trusting(authority), host="localhost")
    buffer = memoryview(bytearray(100))
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:

        def receive() -> None:
            sock.sendall(stream.take_output())
            stream.received(memoryview(sock.recv(65_536)))

        def read() -> bytes:
            while (count := stream.read_into(buffer)) is None:
                receive()
            return bytes(buffer[:count])

        while not stream.handshake():
            receive()
        # The server takes commands once its side of the handshake is done.
        stream.write(memoryview(b"first\n"))
        sock.sendall(stream.take_output())
        server.has_shown(b"first")
        for command in (b"K", b"k", b"K"):  # K asks for new keys of the client, too
            server.says(command)
            receive()  # which says that there are new keys, and nothing else
            assert stream.read_into(buffer) is None
            server.says(b"after " + command)
            assert read() == b"after " + command + b"\n"
            stream.write(memoryview(b"told after " + command + b"\n"))
            sock.sendall(stream.take_output())
            server.has_shown(b"told after " + command)
