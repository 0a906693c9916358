"""A page that takes work to make: scrapers that ask at the same time, or soon afterwards, share one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

Made = TypeVar("Made")
_FRESH_S: Final = 1.0


class SharedPage(Generic[Made]):
    """Has a page made when it is asked for, unless the last one is fresh. For one event loop."""

    def __init__(self, make: Callable[[], Awaitable[Made]]) -> None:
        self._make = make
        self._page: asyncio.Task[Made] | None = None
        self._made_s = 0.0

    async def get(self) -> Made:
        """Return the page. Raises what ``make`` raises; the next call tries again."""
        now_s = asyncio.get_running_loop().time()
        page = self._page
        if page is None or (page.done() and (page.cancelled() or page.exception() or now_s > self._made_s + _FRESH_S)):
            page = self._page = asyncio.ensure_future(self._made())
        # A scraper that goes away takes nothing from the others.
        return await asyncio.shield(page)

    async def _made(self) -> Made:
        made = await self._make()
        self._made_s = asyncio.get_running_loop().time()
        return made

    def cancel(self) -> None:
        """Stop making a page."""
        if self._page is not None:
            self._page.cancel()
