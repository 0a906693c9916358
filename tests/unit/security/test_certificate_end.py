"""When certificates end, as the library ``cryptography`` wrote it."""

import ssl
from datetime import UTC, datetime

import pytest
import trustme

from spark_kafkalite.security.certificate_end import ends_s


def issued(ends: datetime, *, rsa: bool = False) -> bytes:
    key_type = trustme.KeyType.RSA if rsa else trustme.KeyType.ECDSA
    certificate = trustme.CA().issue_cert("a.example", not_after=ends, key_type=key_type)
    return ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())


@pytest.mark.parametrize("year", [2031, 2049, 2050, 2999])  # two digits of a year until 2049, four from then on
@pytest.mark.parametrize("rsa", [False, True])
def test_the_end_is_what_was_written(year: int, rsa: bool) -> None:
    ends = datetime(year, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert ends_s(issued(ends, rsa=rsa)) == ends.timestamp()


def test_what_is_no_certificate_is_refused() -> None:
    whole = issued(datetime(2031, 1, 1, tzinfo=UTC))
    for length in range(200):
        with pytest.raises(ValueError, match=r"ends too early"):
            ends_s(whole[:length])
    for data in (b"\x02\x01\x01", b"\x30\x80", bytes(100), whole.replace(b"Z\x17", b"Z\x19")):
        with pytest.raises(ValueError, match=r"tag|early"):
            ends_s(data)
