"""The checks of ``kafkalite doctor`` in one Python process, of the driver or of an executor.

Executors get this module by value, because they may lack the package. So its head imports only the standard library,
and it returns plain values. It writes nothing, here or on a broker.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import Any

# Modules by their distributions; the last ones only where TLS, tokens or Kerberos need them.
PACKAGES = {
    "spark-kafkalite": "spark_kafkalite",
    "pyarrow": "pyarrow",
    "crc32c": "crc32c",
    "cramjam": "cramjam",
    "pyspark": "pyspark",
    "cryptography": "cryptography",
    "PyJWT": "jwt",
    "gssapi": "gssapi",
    "krb5": "krb5",
}
_TIMEOUT_MS = 10_000


def look(settings: Mapping[str, Any], addresses: Sequence[tuple[str, int]], on_executor: bool) -> dict[str, Any]:
    """Return what this process is and what it reaches; never raises for problems that it finds.

    ``settings`` are the client's, ``addresses`` are those that the brokers advertise. ``process`` identifies an
    executor: a Python worker's parent is one process for each executor. Times are seconds since 1970.
    """
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "process": os.getppid() if on_executor else os.getpid(),
        "executable": sys.executable,
        "python": platform.python_version(),
        "packages": {name: _version(name, module) for name, module in PACKAGES.items()},
        "time_s": time.time(),
    }
    try:
        from spark_kafkalite.records import kernel

        found["native_kernel"] = kernel.IS_NATIVE
        config = _client_config(settings, on_executor)
    except Exception as error:
        found["native_kernel"] = None
        found["client_problem"] = f"{type(error).__name__}: {error}"
        found["own_certificate"] = None
        found["addresses"] = [_reach_by_tcp(host, port) for host, port in addresses]
        return found
    found["client_problem"] = None
    found["own_certificate"] = _own_certificate(config)
    found["addresses"] = [_reach(host, port, config) for host, port in addresses]
    return found


def _version(distribution: str, module: str) -> str | None:
    """Return the version of a package, "?" where it has none (it came with --py-files), None where it is missing.

    PySpark comes to executors as a zip file of Spark's, without metadata, and has its version in the module.
    """
    with contextlib.suppress(ImportError, ValueError):
        if find_spec(module) is None:
            return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(module), "__version__", "?"))


def _client_config(settings: Mapping[str, Any], on_executor: bool) -> Any:
    from spark_kafkalite.client.client_config import ADMIN_SETTINGS, admin_config

    if on_executor:
        from spark_kafkalite.spark.workers.connections import admin_settings

        # Files that Spark ships lie elsewhere here.
        return admin_config(admin_settings(settings), {})
    # One file of settings serves all clients.
    return admin_config({name: value for name, value in settings.items() if name in ADMIN_SETTINGS}, {})


def _own_certificate(config: Any) -> dict[str, Any] | None:
    """Return where the certificates are from that this client shows to brokers, and when the first of them ends."""
    context = config.security.tls_context
    if context is None or not context.chain:
        return None
    from spark_kafkalite.security.certificate import ends_s

    return {"source": context.key_from, "expires_s": min(ends_s(each) for each in context.chain)}


def _reach(host: str, port: int, config: Any) -> dict[str, Any]:
    """Open a connection as a client does: TLS, the broker's greeting, authentication."""
    from spark_kafkalite.client.network.connection import BrokerConnection
    from spark_kafkalite.client.network.retry import Deadline

    reached: dict[str, Any] = {"address": f"{host}:{port}", "problem": None, "certificate_expires_s": None}
    try:
        connection = BrokerConnection.open(host, port, config, Deadline.after_ms(_TIMEOUT_MS))
    except Exception as error:
        reached["problem"] = str(error) or type(error).__name__
        return reached
    try:
        expires = None if connection.tls is None else connection.tls.peer_certificate_expires()
        reached["certificate_expires_s"] = None if expires is None else ssl.cert_time_to_seconds(expires)
    finally:
        connection.close()
    return reached


def _reach_by_tcp(host: str, port: int) -> dict[str, Any]:
    """Where the package cannot be used: whether the port takes connections."""
    problem = None
    try:
        socket.create_connection((host, port), _TIMEOUT_MS / 1000).close()
    except OSError as error:
        problem = f"{host}:{port}: {error.strerror or error}"
    return {"address": f"{host}:{port}", "problem": problem, "certificate_expires_s": None}
