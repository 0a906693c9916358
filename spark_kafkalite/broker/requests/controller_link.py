"""The way to the controller, wherever it is: requests that only it can do are handed on to it over the inner wire.

A client may ask any broker to create, extend or delete topics. A broker that is not the controller sends the request on
as it came, and answers what the controller answers. While there is no controller, or the one that there was does not
answer, it waits a moment for the next one.

What comes from another broker is never handed on again: that broker looks for the controller itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from spark_kafkalite.broker.network.peers import NotAnswered, Peers
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.errors import KafkaliteError, NotController, RequestTimedOut
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView

# How long a request waits for a controller, at most; clients ask again.
_WAIT_S: Final = 10.0
_PAUSE_S: Final = 0.05
# What an answer that says "time out" may need beyond the request's own time.
_ON_TOP_S: Final = 5.0


class ControllerLink:
    """See the module's text. Lives in one event loop."""

    def __init__(self, broker_id: int, view: ClusterView, peers: Peers, is_active: Callable[[], bool]) -> None:
        """``is_active`` returns whether this broker is the controller."""
        self._broker_id = broker_id
        self._view = view
        self._peers = peers
        self.is_active = is_active

    async def hand_on(
        self, message: Any, version: int, refused: Callable[[Any], bool], session: Session | None = None
    ) -> Any | None:
        """Return the controller's answer to a request, None when the request is to be served here.

        ``message`` has a ``timeout_ms``; ``refused`` returns whether an answer is that of a broker which is not the
        controller; ``session`` is that of the request, None for one of this broker's own. Raises NotController (41)
        when no controller answers, RequestTimedOut (7) when it may be at work on the request, and does not answer.
        """
        if session is not None and session.broker_id is not None:
            return None
        loop = asyncio.get_running_loop()
        asked_s = max(message.timeout_ms, 0) / 1000
        until_s = loop.time() + asked_s
        give_up_s = loop.time() + min(asked_s, _WAIT_S)
        problem: KafkaliteError | None = None
        while not self.is_active():
            controller = await self._controller(give_up_s - loop.time())
            if controller is None or self.is_active():
                if self.is_active():
                    break
                raise _none(problem)
            left_s = max(until_s - loop.time(), 0.0)
            message.timeout_ms = int(left_s * 1000)
            try:
                answer = await self._peers.ask(controller, message, version, timeout_s=left_s + _ON_TOP_S)
            except (NotAnswered, TimeoutError) as error:
                raise RequestTimedOut(
                    f"broker {controller.broker_id}, the controller, has not answered; it may do all the same what was "
                    f"asked: {error}"
                ) from error
            except KafkaliteError as error:
                problem = error
            else:
                if not refused(answer):
                    return answer
                problem = None
            if loop.time() >= give_up_s:
                raise _none(problem)
            await asyncio.sleep(_PAUSE_S)
        return None

    async def shows(self, condition: Callable[[ClusterState], bool], timeout_s: float) -> bool:
        """Wait until this broker's own view of the cluster satisfies a condition; return whether it did in time."""
        with contextlib.suppress(TimeoutError):
            await self._view.wait_for(condition, max(timeout_s, 0.0))
        return condition(self._view.state)

    async def _controller(self, timeout_s: float) -> BrokerInfo | None:
        """Return the controller, None when there is none in time, or this broker has become it."""

        def find() -> BrokerInfo | None:
            state = self._view.state
            return None if state.controller_id == self._broker_id else state.brokers.get(state.controller_id)

        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while (found := find()) is None and not self.is_active() and loop.time() < until_s:
            # No longer at a time: nothing is published when this broker becomes the controller.
            await self.shows(lambda _: find() is not None, min(_PAUSE_S, until_s - loop.time()))
        return found


def _none(problem: KafkaliteError | None) -> NotController:
    why = "the cluster has no controller at present" if problem is None else f"the controller is not there: {problem}"
    return NotController(f"{why}; try again")
