"""Addresses to listen on: ``HOST:PORT`` as settings and options have it."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from spark_kafkalite.errors import ConfigError

NO_ADDRESS: Final = "not of the form HOST:PORT (an IPv6 host in brackets)"


def address_text(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain_address(host: str) -> str:
    """Return an IP address in its one form; IPv4 in IPv6 is IPv4. Raises ValueError for what is none."""
    address = ipaddress.ip_address(host)
    return str(getattr(address, "ipv4_mapped", None) or address)


def host_and_port(address: str, setting: str) -> tuple[str, int]:
    """Return the parts of ``HOST:PORT``, an IPv6 host without its brackets; an empty host means every interface.

    Raises ConfigError, naming the setting, for any other text.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{setting}={address}: {NO_ADDRESS}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str, setting: str) -> bool:
    """Return whether only this host reaches what listens on an address; False for an empty one, every interface.

    Raises ConfigError, naming the setting, when the host is not known.
    """
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{setting}: the host {host} is not known: {error.strerror}") from error
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
