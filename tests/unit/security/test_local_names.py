"""``sasl.kerberos.principal.to.local.rules``. Some cases are of Kafka's KerberosNameTest."""

from __future__ import annotations

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.local_names import LocalNames

REALM = "REALM.COM"
KAFKAS = ",".join(
    (
        r"RULE:[1:$1](App\..*)s/App\.(.*)/$1/g",
        r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g",
        r"RULE:[2:$1@$0](.*@B\.COM)s/@.*//",
        "DEFAULT",
    )
)


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        ("DEFAULT", "alice@REALM.COM", "alice"),
        ("", "alice@REALM.COM", "alice"),
        ("DEFAULT", "kafka/host@REALM.COM", "kafka"),
        ("DEFAULT", "alice@OTHER.COM", None),
        ("DEFAULT", "alice@realm.com", None),
        (KAFKAS, "App.service-name/example.com@REALM.COM", "service-name"),
        (KAFKAS, "App.service-name@REALM.COM", "service-name"),
        (KAFKAS, "user/host@REALM.COM", "user"),
        (KAFKAS, "user/host@B.COM", "user"),
        (KAFKAS, "user@B.COM", None),
        ("RULE:[1:$1]/L", "User@OTHER.COM", "user"),
        ("RULE:[2:$1]/L", "User@OTHER.COM", None),
        ("RULE:[1:$1]/U", "User@REALM.COM", "USER"),
        ("RULE:[2:$1](TestABC)s/Test//L", "TestABC/host@REALM.COM", "abc"),
        ("RULE:[1:$1]s/[a-z]{2,3}/x/", "aabb@REALM.COM", "xb"),
        ("RULE:[1:$1](a{1,2}b),DEFAULT", "aab@OTHER.COM", "aab"),
        ("RULE:[1:$1]s/a/b/g/U", "banana@REALM.COM", "BBNBNB"),
        ("RULE:[1:$1]s/a/b/", "banana@REALM.COM", "bbnana"),
        ("RULE:[1:$1]s/(.)(.)/$2\\$$1/", "ab@REALM.COM", "b$a"),
        ("RULE:[2:$2;$1;$0]", "kafka/host@REALM.COM", "host;kafka;REALM.COM"),
        # Never a part of a name: the whole has to match.
        ("RULE:[1:$1@$0](alice@B.COM)s/@.*//", "malice@B.COM", None),
        ("RULE:[1:$1@$0](alice@B.COM)s/@.*//", "alice@B.COM.EVIL", None),
        # A name that is not simple ends the search.
        ("RULE:[1:$1@$0],DEFAULT", "alice@REALM.COM", None),
        ("RULE:[1:$1]s/.*//,DEFAULT", "alice@REALM.COM", None),
        ("DEFAULT", "a/b/c@REALM.COM", None),
        ("DEFAULT", "alice", None),
        ("DEFAULT", "a\\@b@REALM.COM", None),
        ("DEFAULT", "", None),
    ],
)
def test_the_user_of_a_principal(rules: str, principal: str, user: str | None) -> None:
    assert LocalNames(rules, REALM).name_of(principal) == user


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("default", "what begins at 'default' is not a rule"),
        ("DEFAULT,RULE:[1:$1", r"what begins at 'RULE:\[1:\$1' is not a rule"),
        ("RULE:[3:$1]", "1 or 2 parts"),
        ("RULE:[1:$2]", r"beyond \$1"),
        ("RULE:[1:$1]((", "is not a rule"),
        ("RULE:[1:$1](*)", "cannot be used"),
        ("RULE:[1:$1]s/(a)/$2/", "a group that the pattern does not have"),
    ],
)
def test_rules_that_are_none(rules: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"sasl.kerberos.principal.to.local.rules.*{problem}"):
        LocalNames(rules, REALM)
