"""Java's key stores, read from files that keytool made; and what damage and lies come to."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from spark_kafkalite.security.jks import JksStore, read_jks
from tests.paths import GOLDEN
from tests.seeds import SEED, SOAK

FOLDER = GOLDEN / "security"
KEY = (FOLDER / "key.jks").read_bytes()
TRUST = (FOLDER / "trust.jks").read_bytes()


def test_keys_with_their_chains() -> None:
    store = read_jks(KEY, "store-secret")
    assert sorted(key.alias for key in store.keys) == ["first", "second"]
    assert store.certificates == ()
    for key in store.keys:
        assert [certificate[:1] for certificate in key.chain] == [b"\x30"]
        assert key.alias.encode() in key.chain[0]
        assert key.private_key("key-secret")[:1] == b"\x30"
        assert "protected" not in repr(key)


def test_a_wrong_password_of_a_key() -> None:
    key = read_jks(KEY, "store-secret").keys[0]
    with pytest.raises(ValueError, match="wrong password of a private key"):
        key.private_key("store-secret")


def test_trusted_certificates_and_their_order() -> None:
    store = read_jks(TRUST, "store-secret")
    assert store.keys == ()
    assert len(store.certificates) == len(set(store.certificates)) == 2


def test_a_digest_is_checked_with_a_password_only() -> None:
    assert read_jks(TRUST, None) == read_jks(TRUST, "store-secret")
    with pytest.raises(ValueError, match="wrong password"):
        read_jks(TRUST, "other")
    damaged = TRUST[:200] + bytes([TRUST[200] ^ 1]) + TRUST[201:]
    with pytest.raises(ValueError, match="wrong password, or the file is damaged"):
        read_jks(damaged, "store-secret")
    assert isinstance(read_jks(damaged, None), JksStore)


@pytest.mark.parametrize("password", [None, "store-secret"])
@pytest.mark.parametrize("data", [KEY, TRUST])
def test_every_cut_is_an_error(data: bytes, password: str | None) -> None:
    for length in range(len(data)):
        with pytest.raises(ValueError):
            read_jks(data[:length], password)
    with pytest.raises(ValueError):
        read_jks(data + b"\0", password)


def test_changed_bytes_are_an_error_or_another_store() -> None:
    rng, whole = random.Random(SEED), 0
    for _ in range(20_000 if SOAK else 1_000):
        data = bytearray(rng.choice((KEY, TRUST)))
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        try:
            store = read_jks(bytes(data), None)
            for key in store.keys:
                key.private_key("key-secret")
        except ValueError:
            continue
        whole += 1
    assert whole, "some changes make another store"


# Tag, alias and time come before the length of a key.
KEY_LENGTH = 12 + 4 + 2 + int.from_bytes(KEY[16:18], "big") + 8


@pytest.mark.parametrize("position", [8, KEY_LENGTH])  # the number of entries, the length of the first key
def test_lengths_that_lie_cost_no_memory(position: int) -> None:
    lying = KEY[:position] + b"\xff\xff\xff\xff" + KEY[position + 4 :]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="damaged"):
            read_jks(lying, None)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [b"", b"\xfe\xed", b"\xfe\xed\xfe\xed\x00\x00\x00\x01" + bytes(40), bytes(100)])
def test_other_files(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_jks(data, None)
