"""A token bucket: the one rate limit of clients, controllers, events, logs and evictions."""

from __future__ import annotations


class TokenBucket:
    """TokenBucket allows `burst` at once, then `per_second`. Time arrives with each call.

    Tokens may be borrowed from the future; the debt is a delay. A rate of 0 never refills the bucket.
    """

    __slots__ = ("_burst", "_per_second", "_seen_s", "_tokens")

    def __init__(self, per_second: float, burst: int, now_s: float) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._seen_s = now_s

    def tokens(self, now_s: float) -> float:
        """Return the tokens that are there now; less than 0 is a debt."""
        if now_s < self._seen_s:
            self._seen_s = now_s  # a clock that was set back counts from where it is now
        return min(self._burst, self._tokens + (now_s - self._seen_s) * self._per_second)

    def reserve(self, now_s: float) -> float:
        """Take a token, now or in the future, and return how many seconds away it is. First come, first served."""
        self._tokens, self._seen_s = self.tokens(now_s) - 1, now_s
        return 0.0 if self._tokens >= 0 else -self._tokens / self._per_second

    def allow(self, now_s: float) -> bool:
        """Take a token if there is one now; return whether there was."""
        if (tokens := self.tokens(now_s)) < 1:
            return False
        self._tokens, self._seen_s = tokens - 1, now_s
        return True

    def idle_s(self, now_s: float) -> float:
        """Return the seconds since a token was last taken."""
        return now_s - self._seen_s
