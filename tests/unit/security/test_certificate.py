"""What certificates say, as the library ``cryptography`` wrote it and Java reads it."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type as Form
from cryptography.x509.oid import NameOID, ObjectIdentifier

from spark_kafkalite.security.certificate import alternative_names, begins_s, ends_s, subject_text

CN, OU, ORG, C = (
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.COUNTRY_NAME,
)
BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def of_subject(*parts: list[x509.NameAttribute], names: tuple[x509.GeneralName, ...] = ()) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.RelativeDistinguishedName(part) for part in parts]))
        .issuer_name(x509.Name([x509.NameAttribute(CN, "authority")]))
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(BEGIN)
        .not_valid_after(BEGIN + timedelta(days=9000))
    )
    if names:
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def a(kind: ObjectIdentifier, text: str, form: Form | None = None) -> x509.NameAttribute:
    return x509.NameAttribute(kind, text, form)


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


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([[a(C, "DE")], [a(ORG, "Example, Inc.")], [a(OU, "dev")], [a(CN, "svc=1")]],
         r"CN=svc\=1,OU=dev,O=Example\, Inc.,C=DE"),
        ([[a(CN, "a"), a(OU, "b")], [a(ORG, "c")]], "O=c,CN=a+OU=b"),
        ([[a(NameOID.EMAIL_ADDRESS, "a@b.c")], [a(CN, "x")]], "CN=x,1.2.840.113549.1.9.1=#16056140622e63"),
        ([[a(CN, " lead and  trail ")]], r"CN=\ lead and  trail\ "),
        ([[a(CN, "  ")]], r"CN=\ \ "),
        ([[a(CN, "#hash #in")]], r"CN=\#hash \#in"),
        ([[a(CN, 'q"uo\\te;<>+')]], r"CN=q\"uo\\te\;\<\>\+"),
        ([[a(CN, "m\u00fcller \u2603")]], "CN=m\u00fcller \u2603"),
        ([[a(CN, "plain", Form.PrintableString)]], "CN=plain"),
        ([[a(CN, "b\u00fc", Form.BMPString)]], "CN=\\00b\\00\ufffd"),
        ([[a(CN, "t61", Form.T61String)]], "CN=t61"),
        ([[a(CN, "ia5@x", Form.IA5String)]], "CN=ia5@x"),
        ([[a(NameOID.DOMAIN_COMPONENT, "example")], [a(NameOID.USER_ID, "u1")], [a(NameOID.STREET_ADDRESS, "Way 1")],
          [a(NameOID.LOCALITY_NAME, "B")], [a(NameOID.STATE_OR_PROVINCE_NAME, "S")]],
         "ST=S,L=B,STREET=Way 1,UID=u1,DC=example"),
        ([[a(NameOID.SERIAL_NUMBER, "1234")], [a(NameOID.SURNAME, "Doe")]],
         "2.5.4.4=#0c03446f65,2.5.4.5=#130431323334"),
        ([[a(ObjectIdentifier("1.2.3.4"), "odd")]], "1.2.3.4=#0c036f6464"),
        ([[a(CN, "tab\tline\nx")]], "CN=tab\tline\nx"),
        ([[a(CN, "nul\0x")]], r"CN=nul\00x"),
        ([[a(CN, "\rcr\r")]], "CN=\\\rcr\\\r"),
        ([], ""),
    ],
)  # fmt: skip
def test_a_subject_is_the_text_that_java_17_returned_for_it(parts: list[list[x509.NameAttribute]], text: str) -> None:
    assert subject_text(of_subject(*parts)) == text


def test_alternative_names_and_begin_are_what_was_written() -> None:
    both = (x509.DNSName("a.example"), x509.DNSName("b.example"))
    certificate = of_subject([a(CN, "x")], names=both)
    assert alternative_names(certificate) == {b"\x82a.example", b"\x82b.example"}
    assert alternative_names(of_subject([a(CN, "x")])) == frozenset()
    assert begins_s(certificate) == BEGIN.timestamp()
