from __future__ import annotations

import itertools

import pytest

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.cluster_secret import (
    ClusterSecret,
    broker_of_user,
    broker_user,
    new_secret,
    parse_secrets,
)

OLD, NEW = "o" * 32, "n" * 32


def prove(client_secret: ClusterSecret, server_secret: ClusterSecret, broker_id: int = 3) -> bytes | None:
    """Run an exchange, which both sides are content with; return what stands for the secret that was proved."""
    client, server = client_secret.client(broker_id, "remedy", 3), server_secret.server()
    assert client.answer(server.answer(client.answer(server.answer(client.first())) or b"")) is None
    assert broker_of_user(server.user) == broker_id
    return server_secret.fingerprint_of(server)


def test_new_secrets_are_good_ones_and_differ() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    for secret in made:
        assert parse_secrets(secret + "\n", "here") == (secret,)


@pytest.mark.parametrize(
    ("text", "found"),
    [(OLD, (OLD,)), (f"\n  {OLD} \r\n\n{NEW}\n", (OLD, NEW)), (f"{OLD}\n{OLD}", (OLD,))],
)
def test_one_secret_or_two_are_read(text: str, found: tuple[str, ...]) -> None:
    assert parse_secrets(text, "here") == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no secret"),
        (" \n\n", "no secret"),
        ("x" * 31, "31 characters"),
        (f"{OLD}\n{NEW}\n{'z' * 32}", "3 lines"),
        (f"{OLD}\nshort", "line 2"),
        ("correct-horse battery-staple xxxxxxxxxxxxxx", "blanks"),
        ("ü" * 40, "ASCII"),
    ],
)
def test_what_is_no_secret_is_told_without_showing_it(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_secrets(text, "inter.broker.secret.file=/x")
    assert "inter.broker.secret.file=/x" in str(caught.value)
    for word in text.split():
        assert word not in str(caught.value)


def test_only_users_of_brokers_exist() -> None:
    for number in (0, 7, 2**31 - 1):
        assert broker_of_user(broker_user(number)) == number
    for user in ("", "broker-", "broker-01", "broker--1", "broker-+1", "broker-1 ", "broker-2147483648", "alice"):
        assert broker_of_user(user) is None


def test_a_change_in_three_steps_leaves_nobody_out() -> None:
    steps = [ClusterSecret(texts) for texts in ((OLD,), (OLD, NEW), (NEW, OLD), (NEW,))]
    for before, after in itertools.pairwise(steps):
        assert prove(before, after) is not None
        assert prove(after, before) is not None
    with pytest.raises(SaslAuthenticationFailed):
        prove(steps[0], steps[3])


def test_a_proof_lasts_as_long_as_its_secret_is_accepted() -> None:
    old, both, new = ClusterSecret((OLD,)), ClusterSecret((NEW, OLD)), ClusterSecret((NEW,))
    by_old, by_new = prove(old, both), prove(new, both)
    assert by_old is not None and by_new is not None
    assert both.accepts(by_old) and both.accepts(by_new)
    assert new.accepts(by_new) and not new.accepts(by_old)
    assert old.accepts(by_old) and not old.accepts(by_new)
    assert not old.accepts(b"")


def test_no_text_shows_a_secret() -> None:
    secret = ClusterSecret((OLD, NEW))
    shown = f"{secret!r} {secret} {secret.client(1, 'r', 1)!r} {secret.server()!r} {vars(secret)['_accepted']!r}"
    assert OLD not in shown and NEW not in shown


def test_equal_secrets_are_equal() -> None:
    assert ClusterSecret((OLD,)) == ClusterSecret((OLD,)) != ClusterSecret((OLD, NEW))
