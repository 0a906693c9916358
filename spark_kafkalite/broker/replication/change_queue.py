"""What is to be done after changes of the cluster: one piece after the other, in order and in slices.

A piece is a partition whose state in the registry is to be acted upon, or other work. Each is done with the snapshot
that is in force then. An error of one piece is logged, and the next ones are done all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.slices import SLICE_S, Slices, Work

logger: Final = logging.getLogger(__name__)

Piece = TopicPartition | Callable[[], Work[None] | None]


class ChangeQueue:
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        apply: Callable[[TopicPartition], Work[None]],
        on_progress: Callable[[], None],
    ) -> None:
        """``apply`` brings a partition into its state; ``on_progress`` is called now and then, and when all is done."""
        self._loop = loop
        self._slices = slices
        self._apply = apply
        self._on_progress = on_progress
        self._pieces: deque[Piece] = deque()
        self._is_working = False

    def add(self, *pieces: Piece) -> None:
        """Do this after what is queued, from the next :meth:`start` on."""
        self._pieces.extend(pieces)

    def start(self) -> None:
        """Begin, if there is something to do and nothing is being done."""
        if self._pieces and not self._is_working:
            self._is_working = True
            self._slices.start(self._work(), self._worked)

    @property
    def is_idle(self) -> bool:
        """Whether all is done."""
        return not self._pieces and not self._is_working

    def next_pieces(self) -> Iterator[Piece]:
        """Return what is done next."""
        return iter(self._pieces)

    def clear(self) -> None:
        """Drop what is queued."""
        self._pieces.clear()

    def _work(self) -> Work[None]:
        tell_at_s = self._loop.time() + SLICE_S
        while self._pieces:
            piece = self._pieces.popleft()
            try:
                work = self._apply(piece) if isinstance(piece, TopicPartition) else piece()
                if work is not None:
                    yield from work
            except KafkaliteError as error:
                logger.error("%s", error)
            yield None
            if self._loop.time() >= tell_at_s:
                self._on_progress()
                tell_at_s = self._loop.time() + SLICE_S

    def _worked(self, _: None, error: BaseException | None) -> None:
        self._is_working = False
        if error is not None:
            logger.critical("a change of the cluster could not be followed", exc_info=error)
        self.start()
        self._on_progress()
