"""When and how often a client tries again: exponential backoff with jitter, and deadlines.

Which errors deserve another try is written on the errors themselves (``retriable``, ``refresh_metadata``); this module
only turns that, a budget of time and a random source into pauses. Pure but for the deadline's clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    ClusterAuthorizationFailed,
    ConfigError,
    GroupAuthorizationFailed,
    IllegalSaslState,
    KafkaliteError,
    NoBrokerThere,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
    TopicAuthorizationFailed,
    UnsupportedSaslMechanism,
)

# Kafka's clients spread their pauses by a fifth either way, so that those which fail together do not return together.
JITTER = 0.2

# Opening another connection ends in the same way, until somebody changes something here or at the brokers: raised at
# once, and tried again only when there is something new to do. Source: AuthenticationException and its subclasses.
REFUSED_FOR_GOOD = (
    SslHandshakeFailed,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    IllegalSaslState,
    NoBrokerThere,
)
# Those that come before any credentials are sent, and tell of one listener: the next broker may have another
# certificate. Refused credentials are not tried elsewhere, since accounts are locked after a few tries.
OF_ONE_LISTENER = (SslHandshakeFailed, UnsupportedSaslMechanism, IllegalSaslState)
# What an administrator or a new password may mend while a consumer lives: a poll raises it, the next one tries again.
TO_BE_MENDED = (*REFUSED_FOR_GOOD, TopicAuthorizationFailed, GroupAuthorizationFailed, ClusterAuthorizationFailed)


def is_retriable(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, KafkaliteError) and error.retriable


def needs_refresh(error: BaseException) -> bool:
    """Whether the error means that the client's metadata is stale."""
    return isinstance(error, KafkaliteError) and error.refresh_metadata


@dataclass(slots=True)
class Backoff:
    """Pauses that double from ``first_ms`` to ``max_ms``, each spread by a fifth either way.

    Source: KIP-580.
    """

    first_ms: float
    max_ms: float
    attempts: int = 0
    random_source: random.Random = field(default_factory=random.Random, repr=False)

    def next_s(self) -> float:
        """Return the next pause in seconds and count an attempt."""
        # The exponent is capped so that a client which fails for days computes no huge number.
        pause_ms = min(self.max_ms, self.first_ms * 2.0 ** min(self.attempts, 30))
        self.attempts += 1
        return pause_ms * self.random_source.uniform(1 - JITTER, 1 + JITTER) / 1000

    def reset(self) -> None:
        """Start over, after a success."""
        self.attempts = 0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in monotonic time until which something may take."""

    at_s: float
    clock: Clock

    @classmethod
    def after_ms(cls, timeout_ms: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return the deadline that many milliseconds from now. Raises ConfigError for what is no number."""
        try:
            return cls(clock.monotonic_s() + timeout_ms / 1000, clock)
        except TypeError:
            raise ConfigError(f"timeout {timeout_ms!r}: must be a number of milliseconds") from None

    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - self.clock.monotonic_s())

    def passed(self) -> bool:
        """Whether no time is left."""
        return self.clock.monotonic_s() >= self.at_s

    def earlier_of(self, timeout_ms: float) -> Deadline:
        """Return this deadline or the one ``timeout_ms`` from now, whichever comes first."""
        return Deadline(min(self.at_s, self.clock.monotonic_s() + timeout_ms / 1000), self.clock)
