"""What is wrong with what the probes found, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.version import install_command

if TYPE_CHECKING:
    from spark_kafkalite.spark.workers.worker_python import WorkerPython

# A month is enough to renew a certificate in; those of a day or a week are renewed by programs.
_EXPIRES_SOON_S: Final = 30 * 86_400
# Clocks that NTP keeps differ by milliseconds.
_CLOCK_TOLERANCE_S: Final = 1.0
_NEEDED: Final = ("spark-kafkalite", "pyarrow", "crc32c", "cramjam")


def problems(
    driver: Mapping[str, Any],
    executors: Sequence[Mapping[str, Any]],
    expected: int,
    planning: WorkerPython | None = None,
) -> list[str]:
    """Return what to do, in sentences that name the place; nothing when all is well.

    ``expected`` executors exist. ``planning`` is the Python with which Spark plans on the driver's host.
    """
    found = list(_of_one("driver", driver))
    if planning is not None and not planning.is_usable:
        from spark_kafkalite.spark.workers.worker_python import advice

        found.append(f"driver: {advice(planning)}")
    else:
        planning = None
    for each in executors:
        where = f"executor {each['process']} on {each['host']}"
        # One remedy for one Python: the one above.
        is_planning = planning is not None and (each["host"], each["executable"]) == (driver["host"], planning.path)
        if not is_planning:
            found += _of_one(where, each)
        found += _against_driver(where, each, driver)
    if len(executors) < expected:
        found.append(
            f"{len(executors)} of {expected} executors were met: the others are busy or gone; run it again when the "
            "cluster is idle"
        )
    # Several executors of a host have the same to say.
    return list(dict.fromkeys(found))


def _of_one(where: str, found: Mapping[str, Any]) -> Iterator[str]:
    missing = [name for name in _NEEDED if found["packages"][name] is None]
    if missing:
        yield f"{where}: {found['executable']} has no {', no '.join(missing)}: run {install_command()} there"
    elif found["client_problem"]:
        yield f"{where}: the client cannot be used: {found['client_problem']}"
    elif not found["native_kernel"]:
        yield (
            f"{where}: {found['executable']} has no native kernel, so records are read and written much more slowly: "
            "install a wheel that has it (--py-files cannot carry it)"
        )
    own = found["own_certificate"]
    if own is not None and _ends_soon(own["expires_s"], found):
        yield f"{where}: our own certificate, from {own['source']}, expires on {_day(own['expires_s'])}: renew it"
    for each in found["addresses"]:
        if each["problem"]:
            hint = ""
            if each["address"].startswith(("127.", "localhost:", "[::1]")):
                hint = "; only the broker's own host reaches such an address: set its advertised.listeners"
            yield f"{where}: the advertised address {each['address']} cannot be used: {each['problem']}{hint}"
        expires_s = each["certificate_expires_s"]
        # Those that have expired are refused, and are a problem of the address.
        if expires_s is not None and _ends_soon(expires_s, found):
            yield f"{where}: the certificate of the broker at {each['address']} expires on {_day(expires_s)}: renew it"


def _ends_soon(expires_s: float, found: Mapping[str, Any]) -> bool:
    return bool(expires_s - found["time_s"] < _EXPIRES_SOON_S)


def _day(at_s: float) -> date:
    return datetime.fromtimestamp(at_s, UTC).date()


def _against_driver(where: str, found: Mapping[str, Any], driver: Mapping[str, Any]) -> Iterator[str]:
    for name in _NEEDED[:2]:
        here, there = found["packages"][name], driver["packages"][name]
        if here != there and None not in (here, there) and "?" not in (here, there):
            yield f"{where}: {name} is {here}, and {there} on the driver: install the same version"
    offset_s = clock_offset_s(found)
    if abs(offset_s) > _CLOCK_TOLERANCE_S:
        direction = "ahead of" if offset_s > 0 else "behind"
        yield f"{where}: its clock is at least {abs(offset_s):.1f} s {direction} the driver's: run NTP on both hosts"


def clock_offset_s(found: Mapping[str, Any]) -> float:
    """Return by how much an executor's clock is at least ahead of the driver's (negative: behind), 0 if it may agree.

    The driver knows two moments between which the executor read its clock.
    """
    time_s: float = found["time_s"]
    if time_s > found["not_after_s"]:
        return time_s - float(found["not_after_s"])
    return min(0.0, time_s - float(found["not_before_s"]))
