"""Settings of the authorizer: Kafka's two names, and nothing that would leave a broker open by mistake."""

from __future__ import annotations

import pytest

from spark_kafkalite.broker.settings.authorization_settings import AUTHORIZERS, has_authorizer, super_users
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError


@pytest.mark.parametrize("name", AUTHORIZERS)
def test_both_names_of_kafka_are_taken(name: str) -> None:
    assert has_authorizer(BrokerConfig.load(None, {"authorizer.class.name": name}).values)


def test_without_the_setting_nothing_is_limited() -> None:
    assert not has_authorizer(BrokerConfig.load().values)


@pytest.mark.parametrize("name", ["kafka.security.auth.SimpleAclAuthorizer", "com.example.Mine", "true"])
def test_any_other_authorizer_stops_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name=.*must be one of.*AclAuthorizer"):
        BrokerConfig.load(None, {"authorizer.class.name": name})


def test_super_users_are_separated_by_semicolons() -> None:
    config = BrokerConfig.load(None, {"super.users": "User:admin; User:CN=ops,O=Example ;"})
    assert super_users(config.values) == {"User:admin", "User:CN=ops,O=Example"}


@pytest.mark.parametrize("text", ["admin", "User:", ":admin", "User:a;b"])
def test_a_super_user_that_is_no_principal_stops_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match=r"super\.users: '.*' is not of the form TYPE:NAME"):
        BrokerConfig.load(None, {"super.users": text}).check()
