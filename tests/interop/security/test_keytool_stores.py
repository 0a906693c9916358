"""Key and trust stores as Java's keytool makes them now; ``tests/golden/security`` has some that it made before."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_command, java_problem
from spark_kafkalite.security.tls import client_context
from tests.unit.security.tls_pairs import Pair, parsed, pem_of, server_context

STORE, KEY = "store-pass", "key-pass"


@pytest.fixture(scope="module")
def keytool() -> str:
    if (problem := java_problem()) is not None:
        pytest.skip(problem)
    beside_java = Path(java_command() or "").resolve().with_name("keytool")
    found = str(beside_java) if beside_java.is_file() else shutil.which("keytool")
    if found is None:
        pytest.skip(f"there is no keytool beside {beside_java} or on the PATH")
    return found


def run(keytool: str, *arguments: object) -> None:
    options = [f"-J{option}" for option in SHORT_LIVED_OPTIONS]
    command = [keytool, *options, *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("form", "algorithm", "key_password"), [("JKS", "RSA", KEY), ("JKS", "EC", None), ("PKCS12", "RSA", None)]
)
def test_key_and_trust_store(keytool: str, tmp_path: Path, form: str, algorithm: str, key_password: str | None) -> None:
    store, certificate, trust = tmp_path / "key", tmp_path / "certificate", tmp_path / "trust"
    own = ("-storepass", STORE, "-alias", "mine", "-keystore", store)
    run(
        keytool, "-genkeypair", *own, "-storetype", form, "-keyalg", algorithm, "-dname", "CN=me, O=Müller & Söhne",
        "-ext", "bc:c", *(("-keypass", key_password) if key_password else ()),
    )  # fmt: skip
    run(keytool, "-exportcert", *own, "-file", certificate)
    run(
        keytool, "-importcert", "-noprompt", "-alias", "ca", "-file", certificate, "-storetype", form, "-keystore",
        trust, "-storepass", STORE,
    )  # fmt: skip

    authority = trustme.CA()
    given = {
        "ssl_truststore_certificates": pem_of(authority),
        "ssl_keystore_location": store,
        "ssl_keystore_password": STORE,
        "ssl_key_password": key_password,
    }
    server = server_context(authority)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=certificate.read_bytes())
    both = Pair(client_context(parsed(**given)), server)
    both.handshake()
    assert both.server_error is None

    trusting = client_context(parsed(ssl_truststore_location=trust, ssl_truststore_password=STORE))
    assert trusting.get_ca_certs(binary_form=True) == [certificate.read_bytes()]
    for wrong in ({"ssl_keystore_password": "other"}, {"ssl_key_password": "other"} if form == "JKS" else None):
        if wrong is not None:
            with pytest.raises(ConfigError, match="wrong password"):
                client_context(parsed(**(given | wrong)))
