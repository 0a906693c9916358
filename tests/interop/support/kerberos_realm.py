"""A Kerberos realm for tests: a real KDC of MIT on loopback, with its own database, configuration and keytabs.

Needs Debian's krb5-kdc, krb5-admin-server and krb5-user, and faketime for a clock that is off. A client takes part with
the environment of :meth:`KerberosRealm.environment`; inside of the test's own process :meth:`KerberosRealm.entered`
sets it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.free_ports import free_ports
from tests.lab.secure_kafka import GSSAPI, jaas
from tests.patience import PATIENCE_S

REALM: Final = "KAFKALITE.TEST"
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def missing_programs() -> list[str]:
    """Return the programs of a KDC that this host lacks."""
    return [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]


def keytab_jaas(keytab: Path | str, principal: str, **more: str) -> str:
    """Return the JAAS line of Java's programs for a keytab."""
    return jaas(GSSAPI, useKeyTab="true", storeKey="true", keyTab=str(keytab), principal=principal, **more)


def clock_off(offset: str) -> dict[str, str]:
    """Return the environment of a process whose clock is off by ``offset``, as Debian's faketime writes it ("+1h")."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    assert library is not None, "faketime is missing: apt-get install faketime"
    return {"LD_PRELOAD": str(library), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def keys_of(keytab: Path) -> list[bytes]:
    """Return the keys in a keytab (MIT's format 0x0502): of each entry the bytes of its key alone."""
    content = keytab.read_bytes()
    assert content[:2] == b"\x05\x02", keytab
    keys, at = [], 2
    while at < len(content):
        (size,) = struct.unpack_from(">i", content, at)
        entry, at = content[at + 4 : at + 4 + abs(size)], at + 4 + abs(size)
        if size > 0:  # A negative size is a hole.
            (parts,) = struct.unpack_from(">H", entry)
            here = 2
            for _ in range(parts + 1):  # The realm and the parts of the principal.
                here += 2 + struct.unpack_from(">H", entry, here)[0]
            here += 4 + 4 + 1 + 2  # The type of the name, the time, the version, the type of the key.
            (length,) = struct.unpack_from(">H", entry, here)
            keys.append(entry[here + 2 : here + 2 + length])
    return keys


def spellings(secret: bytes) -> list[bytes]:
    """Return how a secret can appear in a text or a file: raw, as Python prints it, in hex, in base64 at any place."""
    in_base64 = [base64.b64encode(bytes(shift) + secret)[4 if shift else 0 : -4] for shift in range(3)]
    printed = repr(secret)[2:-1].encode()
    return [secret, printed, secret.hex().encode(), secret.hex().upper().encode(), *in_base64]


class KerberosRealm:
    """A realm and its KDC; a context manager that starts and stops the KDC."""

    def __init__(self, directory: Path, realm: str = REALM, *, clock: str | None = None) -> None:
        """``clock`` is how far the KDC's clock is off, as faketime writes it ("+1h"); None: it is right."""
        self.directory = directory
        self.realm = realm
        self._clock = clock
        self.krb5_conf = directory / "krb5.conf"
        self.address = ""
        self._kdc: ChildProcess | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kdc": None}

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.krb5_conf.write_text(
            f"[libdefaults]\ndefault_realm = {self.realm}\ndns_lookup_kdc = false\ndns_lookup_realm = false\n"
            "rdns = false\nudp_preference_limit = 1\nforwardable = false\n"
            f"[realms]\n{self.realm} = {{\n  kdc = {self.address}\n}}\n"
        )
        (self.directory / "kdc.conf").write_text(
            f"[realms]\n{self.realm} = {{\n  database_name = {self.directory}/principal\n"
            f"  key_stash_file = {self.directory}/stash\n  acl_file = {self.directory}/acl\n"
            f"  kdc_listen = {self.address}\n  kdc_tcp_listen = {self.address}\n  max_life = 1d\n}}\n"
            f"[logging]\nkdc = FILE:{self.directory}/kdc.log\n"
        )
        self._run("kdb5_util", "create", "-s", "-P", "the master password", "-r", self.realm)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the KDC, and return when it answers."""
        program = shutil.which("krb5kdc", path=_PATH)
        assert program is not None
        off = {} if self._clock is None else clock_off(self._clock)
        self._kdc = ChildProcess(
            [program, "-n", "-r", self.realm], self.directory, "krb5kdc", environment=self.environment(**off)
        )
        log = self.directory / "kdc.log"
        self._kdc.wait_until(
            lambda: log.exists() and "commencing operation" in log.read_text(), PATIENCE_S, "commencing operation"
        )

    def stop(self) -> None:
        """End the KDC; nobody can reach it from then on."""
        if self._kdc is not None:
            self._kdc.kill()
            self._kdc = None
            (self.directory / "kdc.log").unlink(missing_ok=True)

    def environment(self, **further: str) -> dict[str, str]:
        """Return this process's environment with the realm's configuration."""
        return {
            **os.environ,
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self.directory}/no-such-cache",
            **further,
        }

    @contextlib.contextmanager
    def entered(self, **further: str) -> Iterator[None]:
        """Have this process, and processes that it starts, take part in the realm."""
        before = dict(os.environ)
        os.environ.update(self.environment(**further))
        try:
            yield
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)

    def add(self, *names: str, max_life: str = "1day") -> None:
        """Add principals with random keys; ``max_life`` is how long tickets of them live."""
        for name in names:
            self.admin(f"addprinc -randkey -maxlife {max_life} {name}")

    def keytab(self, path: Path, *names: str) -> Path:
        """Write a keytab with the present keys of the principals, and return its path."""
        for name in names:
            self.admin(f"ktadd -norandkey -k {path} {name}")
        return path

    def service_keytab(self, name: str) -> Path:
        """Add a service unless it is there, and return a keytab with its key."""
        path = self.directory / f"{name.replace('/', '-')}.keytab"
        if not path.exists():
            self.add(name)
            self.keytab(path, name)
        return path

    def kinit(self, name: str, keytab: Path, cache: Path, *, life: str = "1h") -> None:
        """Get a ticket-granting ticket into a cache file."""
        self._run("kinit", "-k", "-t", str(keytab), "-c", f"FILE:{cache}", "-l", life, f"{name}@{self.realm}")

    def admin(self, command: str) -> None:
        """Run a command of kadmin."""
        said = self._run("kadmin.local", "-r", self.realm, "-q", command)
        assert not any(word in said for word in ("error", "failed", "usage")), said

    def _run(self, *command: str) -> str:
        program = shutil.which(command[0], path=_PATH)
        assert program is not None, f"{command[0]} is missing: apt-get install krb5-kdc krb5-admin-server krb5-user"
        done = subprocess.run(
            [program, *command[1:]], env=self.environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr
