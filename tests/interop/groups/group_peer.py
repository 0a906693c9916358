"""A member of a group that speaks frames: any version, any order, and no manners unless the test has some."""

from __future__ import annotations

from typing import Any

from spark_kafkalite.wire.message import ApiMessage
from spark_kafkalite.wire.messages.delete_groups import DeleteGroupsRequest
from spark_kafkalite.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorRequest
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from spark_kafkalite.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until

# No coordinator yet: loading, not available, not this one.
NOT_YET = (14, 15, 16)
MEMBER_ID_REQUIRED = 79


def find_coordinator(client: RawClient, group: str) -> None:
    """Wait until the broker coordinates the group."""

    def coordinates() -> bool:
        answer = client.call(FindCoordinatorRequest(key=group), 2)
        if answer.error_code != 0:
            return False
        found = client.call(DescribeGroupsRequest(groups=[group]), 5).groups[0]
        return found.error_code not in NOT_YET

    wait_until(coordinates, f"a coordinator of the group {group}", poll_s=0.02)


class GroupPeer(RawClient):
    """One member on a connection of its own; methods that only send are named so."""

    def __init__(
        self, bootstrap: str, group: str, *, instance: str | None = None, timeout_s: float = PATIENCE_S
    ) -> None:
        super().__init__(bootstrap, timeout_s)
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1

    def join_request(
        self,
        *,
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"\0\0\0\0\0\0\xff\xff\xff\xff"),),
        protocol_type: str = "consumer",
    ) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        )

    def send_join(self, version: int = 9, **how: Any) -> None:
        self.send(self.join_request(**how), version)

    def receive_join(self, version: int = 9) -> Any:
        """Take the answer to a join, and what it says."""
        answer = self.receive(11, version)
        if answer.error_code in (0, MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
            self.generation = answer.generation_id
        return answer

    def join(self, version: int = 9, **how: Any) -> Any:
        """Join, in two steps where the version has two; return the last answer."""
        self.send_join(version, **how)
        answer = self.receive_join(version)
        if answer.error_code == MEMBER_ID_REQUIRED:
            self.send_join(version, **how)
            answer = self.receive_join(version)
        return answer

    def send_sync(self, assignments: dict[str, bytes] | None = None, version: int = 5) -> None:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        )
        if version >= 5:
            request.protocol_type, request.protocol_name = "consumer", "range"
        self.send(request, version)

    def receive_sync(self, version: int = 5) -> Any:
        return self.receive(14, version)

    def sync(self, assignments: dict[str, bytes] | None = None, version: int = 5) -> Any:
        self.send_sync(assignments, version)
        return self.receive_sync(version)

    def heartbeat(self, version: int = 4) -> int:
        """Return the error code."""
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance if version >= 3 else None,
        )
        return int(self.call(request, version).error_code)

    def leave(self, version: int = 5) -> int:
        """Return the error code."""
        request: ApiMessage = LeaveGroupRequest(group_id=self.group, member_id=self.member_id)
        if version >= 3:
            member = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
            request = LeaveGroupRequest(group_id=self.group, members=[member])
        answer = self.call(request, version)
        return int(answer.error_code or (answer.members[0].error_code if version >= 3 else 0))

    def alone(self, version: int = 9, **how: Any) -> None:
        """Become the only member of a stable group."""
        answer = self.join(version, **how)
        assert answer.error_code == 0, answer
        assert answer.leader == self.member_id
        done = self.sync({self.member_id: b"all"})
        assert (done.error_code, done.assignment) == (0, b"all")

    def describe(self, version: int = 5) -> DescribedGroup:
        described: DescribedGroup = self.call(DescribeGroupsRequest(groups=[self.group]), version).groups[0]
        return described

    def delete(self) -> int:
        """Delete the group; return the error code."""
        return int(self.call(DeleteGroupsRequest(groups_names=[self.group]), 2).results[0].error_code)
