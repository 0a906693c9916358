"""How a listening socket accepts connections: a bounded number in a pass of the loop."""

from __future__ import annotations

import asyncio
import socket

from spark_kafkalite.net.listening import ACCEPTS_PER_PASS, ListeningSocket, bind
from tests.patience import wait_until_async


def test_a_crowd_is_accepted_over_several_passes_of_the_loop() -> None:
    count = 3 * ACCEPTS_PER_PASS
    accepted: list[socket.socket] = []
    in_pass: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        listening = ListeningSocket(loop, bind("127.0.0.1", 0), lambda found, _: accepted.append(found), print)
        # All wait in the kernel before the loop looks for the first time.
        listening.start(2 * count)
        clients = [socket.create_connection(("127.0.0.1", listening.port)) for _ in range(count)]

        def all_are_there() -> bool:
            in_pass.append(len(accepted) - sum(in_pass))
            return len(accepted) == count

        await wait_until_async(all_are_there, "all connections accepted")
        listening.close()
        for each in (*accepted, *clients):
            each.close()

    asyncio.run(run())
    # Others are served between these passes.
    assert max(in_pass) == ACCEPTS_PER_PASS <= 16
