"""What ``kafkalite doctor`` makes of what it found, and what the probe tells of this process."""

import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.cli.doctor import probe
from spark_kafkalite.cli.doctor.findings import clock_offset_s, problems
from spark_kafkalite.version import install_command
from tests.lab.certificates import STORE_PASSWORD, Authority

NOW_S = 1_800_000_000.0
VERSIONS = {
    "spark-kafkalite": "0.2.0",
    "pyarrow": "20",
    "crc32c": "1",
    "cramjam": "1",
    "pyspark": "4.2",
    "cryptography": None,
}


def found(**given: Any) -> dict[str, Any]:
    """What a probe returns where all is well, but for what is given."""
    address = {"address": "broker:9092", "problem": None, "certificate_expires_s": None}
    packages = VERSIONS | given.pop("packages", {})
    return {
        "host": "h", "process": 7, "executable": "/opt/python", "python": "3.11.2", "packages": packages,
        "native_kernel": True, "client_problem": None, "own_certificate": None,
        "addresses": [address | given.pop("address", {})],
        "time_s": NOW_S, "not_before_s": NOW_S - 1, "not_after_s": NOW_S + 1, **given,
    }  # fmt: skip


def test_nothing_is_wrong() -> None:
    expires_s = NOW_S + 31 * 86_400
    own = {"source": "ssl.keystore.location=k", "expires_s": expires_s}
    well = found(address={"certificate_expires_s": expires_s}, own_certificate=own, packages={"pyspark": None})
    assert problems(found(), [well, found(process=8, packages={"pyarrow": "?"})], 2) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"packages": {"pyarrow": None, "crc32c": None}, "client_problem": "x"},
            f"/opt/python has no pyarrow, no crc32c: run {install_command()} there",
        ),
        ({"client_problem": "ConfigError: no"}, "the client cannot be used: ConfigError: no"),
        ({"native_kernel": False}, "/opt/python has no native kernel, so records "),
        (
            {"address": {"problem": "connection refused"}},
            "the advertised address broker:9092 cannot be used: connection refused",
        ),
        (
            {"address": {"address": "127.0.0.1:9092", "problem": "refused"}},
            "the advertised address 127.0.0.1:9092 cannot be used: refused; only the broker's own host reaches such an "
            "address: set its advertised.listeners",
        ),
        (
            {"address": {"certificate_expires_s": NOW_S + 86_400}},
            f"the certificate of the broker at broker:9092 expires on "
            f"{datetime.fromtimestamp(NOW_S + 86_400, UTC).date()}: renew it",
        ),
        (
            {"own_certificate": {"source": "ssl.keystore.location=k", "expires_s": NOW_S + 86_400}},
            f"our own certificate, from ssl.keystore.location=k, expires on "
            f"{datetime.fromtimestamp(NOW_S + 86_400, UTC).date()}: renew it",
        ),
        ({"packages": {"pyarrow": "19"}}, "pyarrow is 19, and 20 on the driver: install the same version"),
        ({"time_s": NOW_S - 6}, "its clock is at least 5.0 s behind the driver's: run NTP on both hosts"),
        ({"time_s": NOW_S + 4}, "its clock is at least 3.0 s ahead of the driver's: run NTP on both hosts"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(given: dict[str, Any], text: str) -> None:
    [told] = problems(found(), [found(**given)], 1)
    assert told.startswith(f"executor 7 on h: {text}")


def test_executors_that_were_not_met_are_counted() -> None:
    assert problems(found(), [found()], 3) == [
        "1 of 3 executors were met: the others are busy or gone; run it again when the cluster is idle"
    ]


def test_clocks_that_may_agree_have_no_offset() -> None:
    assert clock_offset_s(found()) == 0
    assert clock_offset_s(found(time_s=NOW_S + 1)) == 0


def test_the_probe_tells_what_is_here_and_what_it_cannot_reach() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        # What another client's settings may hold beside an administrator's.
        settings = {"bootstrap.servers": "127.0.0.1:1", "acks": "all"}
        seen = probe.look(settings, [("127.0.0.1", port)], False)
    assert seen["executable"] == sys.executable
    assert seen["client_problem"] is None
    assert seen["packages"]["pyarrow"]
    assert abs(seen["time_s"] - time.time()) < 3600
    [address] = seen["addresses"]
    assert "refused" in address["problem"]


@pytest.mark.parametrize("form", ["pem", "pkcs12"])
def test_the_probe_tells_when_its_own_certificate_ends(tmp_path: Path, form: str) -> None:
    authority = Authority(tmp_path, "authority")
    certificate = authority.issue("alice", intermediate=True, days=9)
    store = certificate.pem_file() if form == "pem" else certificate.pkcs12_file()
    settings = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SSL",
        "ssl.truststore.location": str(authority.pem_file()),
        "ssl.keystore.location": str(store),
    } | ({} if form == "pem" else {"ssl.keystore.password": STORE_PASSWORD})
    own = probe.look(settings, [], False)["own_certificate"]
    assert own["source"] == f"ssl.keystore.location={store}"
    assert 0 <= time.time() + 9 * 86_400 - own["expires_s"] < 3600
    del settings["ssl.keystore.location"]
    assert probe.look(settings, [], False)["own_certificate"] is None


def test_the_probe_works_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("spark_kafkalite", "spark_kafkalite.records", "spark_kafkalite.records.kernel"):
        monkeypatch.setitem(sys.modules, name, None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        seen = probe.look({}, [listening.getsockname()[:2]], True)
    assert seen["packages"]["spark-kafkalite"] is None
    assert seen["client_problem"].startswith("ModuleNotFoundError: ")
    assert seen["addresses"][0]["problem"] is None
