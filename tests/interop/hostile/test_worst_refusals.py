"""The worst request of every served API, from a client that has no right at all: refusing it does not hold the loop.

What is refused is answered item by item, so it may be as much work as what is done.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import processor
from tests.interop.hostile import worst_requests
from tests.interop.hostile.test_worst_requests import ANSWERED_S, LONGEST_MS
from tests.interop.hostile.worst_requests import MEBIBYTE, Worst
from tests.interop.security.asked_rights import login
from tests.interop.support.metered_broker import MeteredBroker

pytestmark = [pytest.mark.timeout(600)]

# What was slow once.
WATCHED = {
    "250,000 topics, validated only",
    "partitions for 250,000 unknown topics",
    "partitions of 250,000 unknown topics",
    "quotas of an entity of 250,000 parts",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredBroker]:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="bob-secret";'
    overrides = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "max.decompressed.batch.bytes": str(100 * MEBIBYTE),
    }
    with MeteredBroker(tmp_path_factory.mktemp("refusals") / "data", overrides=overrides) as running:
        yield running


def played(broker: MeteredBroker, worst: Worst) -> None:
    """Send a request as a client without rights, and receive the answer or the end of the connection."""
    frame = worst.make()
    with login(broker.bootstrap, "bob") as client:
        client.socket.settimeout(ANSWERED_S)
        client.send_frame(frame)
        if worst.refused:
            assert client.is_closed()
        else:
            assert client.receive_frame()[:4] == frame[4:8]


def watched() -> list[Worst]:
    assert {worst.name for worst in worst_requests.ALL} > WATCHED
    return [worst for worst in worst_requests.ALL if worst.name in WATCHED]


@pytest.mark.parametrize("worst", watched(), ids=lambda worst: worst.name)
def test_a_client_without_rights_is_answered(broker: MeteredBroker, worst: Worst) -> None:
    played(broker, worst)


@pytest.mark.soak
@pytest.mark.parametrize("worst", worst_requests.ALL, ids=lambda worst: worst.name)
def test_the_loop_is_never_held_for_long(broker: MeteredBroker, worst: Worst) -> None:
    assert broker.least_longest_ms(lambda: played(broker, worst)) < LONGEST_MS * processor.slowness()
