"""Rule R6: for how long a broker acts alone on the registry's last answer."""

from __future__ import annotations

import pytest

from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.errors import (
    KafkaError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
)


def test_a_lease_is_two_thirds_of_the_session_from_the_sending_on() -> None:
    lease = RegistryLease()
    assert not lease.holds(0.0)
    lease.renew(sent_s=100.0, session_timeout_ms=6000)
    assert lease.holds(103.9)
    assert not lease.holds(104.0)
    lease.check_leads(103.9)
    with pytest.raises(NotLeaderOrFollower, match="acks=all is served"):
        lease.check_leads(104.0)
    # What comes back after a lease was over is a lease again.
    lease.renew(sent_s=110.0, session_timeout_ms=6000)
    assert lease.holds(113.0)


def test_an_answer_that_comes_late_shortens_nothing() -> None:
    lease = RegistryLease()
    lease.renew(sent_s=100.0, session_timeout_ms=3000)
    lease.renew(sent_s=99.0, session_timeout_ms=3000)
    assert lease.holds(101.9)


def test_with_the_embedded_registry_there_is_no_end() -> None:
    assert RegistryLease(unlimited=True).holds(1e12)


@pytest.mark.parametrize("missing", [OffsetOutOfRange, OutOfOrderSequenceNumber])
def test_who_may_not_lead_any_more_says_of_nothing_that_it_is_missing(missing: type[KafkaError]) -> None:
    lease = RegistryLease()
    lease.renew(10.0, 3000)
    error, other = missing("there is less"), NotEnoughReplicas("too few")
    assert lease.said(error, 11.9) is error
    assert isinstance(lease.said(error, 12.1), NotLeaderOrFollower)
    assert lease.said(other, 12.1) is other
