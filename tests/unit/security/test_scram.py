from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafkalite.errors import SaslAuthenticationFailed
from spark_kafkalite.security import scram
from spark_kafkalite.security.scram import (
    SCRAM_HASHES,
    ScramClient,
    ScramServer,
    credential_of_salted,
    credential_text,
    decoy_credential,
    new_salt,
    read_credential,
    salted_password,
    scram_credential,
)
from tests.seeds import SOAK

SECRET = b"s" * 32
USER, PASSWORD, SALT = "alice", "pencil-canary", b"0123456789abcdef"
both = pytest.mark.parametrize("mechanism", scram.SCRAM_HASHES)


def server_of(mechanism, user=USER, password=PASSWORD, *, is_token=False, iterations=4096):
    credential = scram_credential(mechanism, password, SALT, iterations)
    return ScramServer(mechanism, lambda *asked: credential if asked == (user, is_token) else None, SECRET)


def log_in(client, server):
    """Run a whole exchange; both sides are content when it returns."""
    assert client.answer(server.answer(client.answer(server.answer(client.first())))) is None
    assert server.is_done


def test_the_vector_of_rfc_7677():
    nonces = {"client": "rOprNGfwEbeRWgbNEkqO", "server": "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"}
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = scram_credential("SCRAM-SHA-256", "pencil", salt, 4096)
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce=nonces["client"])
    server = ScramServer("SCRAM-SHA-256", lambda user, is_token: credential, SECRET, nonce=nonces["server"])

    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.answer(client.first())
    assert challenge == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = client.answer(challenge)
    assert proof == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    signature = server.answer(proof)
    assert signature == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.answer(signature) is None


@both
@pytest.mark.parametrize("user", ["alice", "a=b,c", "=2C", "ünï €", "x" * 1000])
def test_who_knows_the_password_gets_in(mechanism, user):
    server = server_of(mechanism, user)
    log_in(ScramClient(mechanism, user, PASSWORD), server)
    assert server.user == user and not server.is_token


@both
def test_a_delegation_token_is_looked_up_as_one(mechanism):
    server = server_of(mechanism, "tokenid", "aG1hYw==", is_token=True)
    client = ScramClient(mechanism, "tokenid", "aG1hYw==", is_token=True)
    assert client.first().endswith(b",tokenauth=true")
    log_in(client, server)
    assert server.is_token


@both
def test_unknown_users_and_wrong_passwords_fail_alike_at_the_proof(mechanism):
    errors, challenges = set(), set()
    for user, password in ((USER, "wrong"), ("nobody", PASSWORD), ("nobody", PASSWORD)):
        client, server = ScramClient(mechanism, user, password), server_of(mechanism)
        challenge = server.answer(client.first())
        challenges.add(challenge.split(b",", 1)[1])
        with pytest.raises(SaslAuthenticationFailed) as caught:
            server.answer(client.answer(challenge))
        errors.add(str(caught.value))
        assert not server.is_done
    assert len(errors) == 1
    assert len(challenges) == 2, "an unknown user has always the same salt"


@both
def test_the_client_finds_out_a_server_that_does_not_know_the_password(mechanism):
    client, server = ScramClient(mechanism, USER, PASSWORD), server_of(mechanism)
    client.answer(server.answer(client.first()))
    size = 32 if mechanism.endswith("256") else 64
    with pytest.raises(SaslAuthenticationFailed, match="did not prove"):
        client.answer(b"v=" + base64.b64encode(bytes(size)))


def test_the_servers_reason_is_shown_with_what_to_check():
    client, server = (
        ScramClient("SCRAM-SHA-256", USER, PASSWORD, remedy="check sasl.password"),
        server_of("SCRAM-SHA-256"),
    )
    client.answer(server.answer(client.first()))
    with pytest.raises(SaslAuthenticationFailed, match=r"'invalid-proof'; check sasl\.password"):
        client.answer(b"e=invalid-proof")


def first_of(nonce, rest):
    return f"r={nonce}{rest}".encode()


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (",s=c2FsdA==,i=4096", "nonce does not continue"),
        ("more,s=c2FsdA==,i=4095", "asks for 4095 iterations; from 4096 to 1000000"),
        ("more,s=c2FsdA==,i=1000001", "asks for 1000001 iterations"),
        ("more,s=c2Fs!dA==,i=4096", "salt is not base64"),
        ("more,s=c2FsdA,i=4096", "salt is not base64"),
        ("more,s=c2FsdA==,i=-4096", "not of the form"),
        ("more,s=c2FsdA==,i=4096,m=x", "not of the form"),
        ("more,s=c2FsdA==", "not of the form"),
        ("more,i=4096,s=c2FsdA==", "not of the form"),
        ("möre,s=c2FsdA==,i=4096", "not of the form"),
        ("m" * 70_000 + ",s=c2FsdA==,i=4096", "not of the form"),
    ],
)
def test_the_client_refuses_a_bad_first_answer(rest, problem):
    client = ScramClient("SCRAM-SHA-256", USER, PASSWORD, nonce="abc")
    with pytest.raises(SaslAuthenticationFailed, match=problem):
        client.answer(first_of("abc", rest))


def test_the_client_refuses_another_nonce_and_passes_over_unknown_attributes():
    client = ScramClient("SCRAM-SHA-256", USER, PASSWORD, nonce="abc")
    with pytest.raises(SaslAuthenticationFailed, match="nonce"):
        client.answer(b"r=abXmore,s=c2FsdA==,i=4096")
    assert client.answer(b"r=abcmore,s=c2FsdA==,i=4096,x=y,zz=1") is not None


def test_after_its_last_message_the_server_is_not_heard():
    client, server = ScramClient("SCRAM-SHA-256", USER, PASSWORD), server_of("SCRAM-SHA-256")
    log_in(client, server)
    with pytest.raises(SaslAuthenticationFailed, match="goes on"):
        client.answer(b"")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"y,,n=alice,r=abc", "not of the form"),
        (b"p=tls-unique,,n=alice,r=abc", "not of the form"),
        (b"n,,m=x,n=alice,r=abc", "not of the form"),
        (b"n,,n=alice,r=abc,m=x", "not of the form"),
        (b"n,,n=,r=abc", "not of the form"),
        (b"n,,n=alice,r=", "not of the form"),
        (b"n,a=bob,n=alice,r=abc", "only as its own user"),
        (b"n,,n=a=2Db,r=abc", "neither =2C nor =3D"),
        (b"n,,n=\xff,r=abc", "not of the form"),
    ],
)
def test_the_server_refuses_a_bad_first_message(message, problem):
    server = server_of("SCRAM-SHA-256")
    with pytest.raises(SaslAuthenticationFailed, match=problem):
        server.answer(message)
    with pytest.raises(SaslAuthenticationFailed, match="goes on after the end"):
        server.answer(b"n,,n=alice,r=abc")


def test_the_server_takes_the_users_own_name_as_authorization_id():
    assert server_of("SCRAM-SHA-256").answer(b"n,a=alice,n=alice,r=abc").startswith(b"r=abc")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda final: final.replace(b"r=", b"r=x"), "nonce is not this exchange's"),  # only its end is right
        (lambda final: final.replace(b"c=biws", b"c=eSws"), "channel binding"),
        (lambda final: final.replace(b"c=biws", b"c=bi!s"), "not base64"),
        (lambda final: final[: final.index(b"p=")] + b"p=AAAA", "as long as the hash"),
        (lambda final: final[: final.index(b",p=")], "not of the form"),
        (lambda final: final.replace(b",p=", b",m=x,p="), "not of the form"),
        (lambda final: final.replace(b",p=", b",x=y,p="), "password is wrong"),  # it is signed too
    ],
)
def test_the_server_refuses_a_changed_last_message(change, problem):
    client, server = ScramClient("SCRAM-SHA-256", USER, PASSWORD), server_of("SCRAM-SHA-256")
    final = client.answer(server.answer(client.first()))
    with pytest.raises(SaslAuthenticationFailed, match=problem):
        server.answer(change(final))
    assert not server.is_done


def test_a_last_message_of_another_connection_is_refused():
    client = ScramClient("SCRAM-SHA-256", USER, PASSWORD, nonce="abc")
    first, second = server_of("SCRAM-SHA-256"), server_of("SCRAM-SHA-256")
    final = client.answer(first.answer(client.first()))
    second.answer(client.first())
    with pytest.raises(SaslAuthenticationFailed, match="nonce"):
        second.answer(final)


def test_a_second_connection_does_not_derive_the_keys_again(monkeypatch):
    derived = []
    real = scram.hashlib.pbkdf2_hmac
    monkeypatch.setattr(scram.hashlib, "pbkdf2_hmac", lambda *given: derived.append(given) or real(*given))
    password = "used by this test only"
    server = server_of("SCRAM-SHA-512", password=password)
    for _ in range(3):
        log_in(ScramClient("SCRAM-SHA-512", USER, password), server)
        server = server_of("SCRAM-SHA-512", password=password)
    assert len(derived) == 1


def test_no_text_holds_the_password():
    credential = scram_credential("SCRAM-SHA-256", PASSWORD, SALT, 4096)
    assert "key" not in repr(credential)
    assert PASSWORD not in repr(ScramClient("SCRAM-SHA-256", USER, PASSWORD))


near = st.lists(
    st.sampled_from(
        [b"r=abc", b"x", b",", b"s=", b"c2FsdA==", b"i=", b"4096", b"v=", b"e=", b"n,,", b"n=alice", b"c=biws"]
    )
    | st.binary(max_size=4),
    max_size=12,
).map(b"".join)


@settings(max_examples=3_000 if SOAK else 60)
@given(st.lists(near, min_size=1, max_size=3))
def test_whatever_the_peer_says_only_a_failed_authentication_comes_out(messages):
    client = ScramClient("SCRAM-SHA-256", USER, PASSWORD, nonce="abc")
    server = server_of("SCRAM-SHA-256")
    for side in (client, server):
        for message in messages:
            try:
                side.answer(message)
            except SaslAuthenticationFailed:
                pass
    assert not server.is_done


@pytest.mark.parametrize("mechanism", list(SCRAM_HASHES))
def test_a_stored_credential_is_read_as_it_was_written(mechanism: str) -> None:
    salt = new_salt()
    credential = scram_credential(mechanism, "secret", salt, 8192)
    assert read_credential(mechanism, credential_text(credential)) == credential
    salted = salted_password(mechanism, "secret", salt, 8192)
    assert credential_of_salted(mechanism, salted, salt, 8192) == credential


def test_a_stored_credential_has_kafkas_form_and_any_order() -> None:
    salt, iterations = b"1k8vfzy6b0s3c8xqyqzv0bqk5", 4096
    text = credential_text(scram_credential("SCRAM-SHA-256", "secret", salt, iterations))
    assert re.fullmatch(
        r"salt=[A-Za-z0-9+/]+={0,2},stored_key=[A-Za-z0-9+/]{43}=,server_key=[A-Za-z0-9+/]{43}=,iterations=4096", text
    )
    shuffled = ",".join(reversed(text.split(",")))
    assert read_credential("SCRAM-SHA-256", shuffled).salt == salt


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("iterations=4096", "iterations=4095"),
        ("iterations=4096", "iterations=1000001"),
        ("iterations=4096", "iterations=x"),
        (",iterations=4096", ""),
        ("salt=", "salt=!"),
        ("stored_key=", "stored_key=AAAA"),
        ("server_key=", "key="),
    ],
)
def test_a_broken_credential_is_refused_and_not_shown(old: str, new: str) -> None:
    text = credential_text(scram_credential("SCRAM-SHA-256", "secret", b"salt", 4096))
    key = text.partition("stored_key=")[2][:20]
    with pytest.raises(ValueError) as refused:
        read_credential("SCRAM-SHA-256", text.replace(old, new, 1))
    assert key not in str(refused.value)


def test_decoys_look_like_what_tools_choose() -> None:
    for number in range(50):
        decoy = decoy_credential("SCRAM-SHA-512", f"user{number}", b"secret")
        for salt in (decoy.salt, new_salt()):
            assert re.fullmatch(rb"[0-9a-z]{22,26}", salt)
    assert (
        decoy_credential("SCRAM-SHA-512", "a", b"x").salt
        == decoy_credential("SCRAM-SHA-512", "a", b"x").salt
        != decoy_credential("SCRAM-SHA-512", "b", b"x").salt
    )
