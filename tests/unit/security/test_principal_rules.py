"""Principals from subjects of certificates. Names and results are those of Kafka's SslPrincipalMapperTest, and more."""

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.principal_rules import PrincipalRules

KAFKAS = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        (KAFKAS, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (KAFKAS, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (KAFKAS, "CN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (KAFKAS, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?)$/$1/", "OU=x", None),
        ("RULE:^CN=([^,]+),.*$/$1/,RULE:^CN=(.*)$/$1/L", "CN=Anna", "anna"),
        (r"RULE:^CN=(.*?)\/(.*)$/$2\/$1/", "CN=a/b", "b/a"),
        ("RULE:^CN=(?<who>[a-z]+).*$/${who}!/", "CN=anna,O=x", "anna!"),
        ("RULE:^CN=([a-z]+).*$/$1 costs \\$1 and $2/", "CN=anna", "anna costs $1 and $2"),
        ("RULE:^CN=([a-z]+).*$/$12/", "CN=anna", "anna2"),
        ("RULE:^CN=(.{2,3})$/$1/", "CN=abc", "abc"),
        ("RULE:^CN=(x?).*$/$1/", "CN=anna", None),
        # A pattern has to match all of the subject: a part of it is not enough.
        ("RULE:CN=admin/admin/", "CN=admin,O=evil", None),
        ("RULE:^CN=(.*?)$/$1/", "CN=a\nb", None),
    ],
)
def test_the_first_rule_that_matches_gives_the_name(rules: str, subject: str, name: str | None) -> None:
    assert PrincipalRules(rules).name_of(subject) == name


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("default", "what begins at 'default' is not a rule"),
        ("RULE:^CN=(.*?)$/$1", "what begins at 'RULE:"),
        ("RULE:^CN=(.*?)$/$1/X", "what begins at 'RULE:"),
        ("DEFAULT,nonsense", "what begins at 'nonsense'"),
        (r"RULE:^CN=(\p{Lu}+)$/$1/", r"the pattern of RULE:.* cannot be used: bad escape"),
        ("RULE:^CN=(.*$/$1/", "cannot be used: missing"),
        ("RULE:^CN=(.*)$/${who}/", "has no group 'who'"),
    ],
)
def test_what_is_no_rule_is_named(rules: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrincipalRules(rules)
