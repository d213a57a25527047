"""This module sends one call for a client: it waits for the request throttle, retries where the policy allows,
and returns the response.
"""

from __future__ import annotations


class TokenBucket:
    """RequestThrottle limits a client to `rate` calls a second with `burst` saved up at most. A burst of 0 means
    no limit.
    """

    def __init__(self, rate: float, burst: int, now_s: float) -> None:
        if burst and rate <= 0:
            raise ValueError(f"a rate limit needs a rate above zero, not {rate} (burst 0 means no limit)")
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._at_s = now_s

    def reserve(self, now_s: float) -> float:
        """Take one token, in debt if need be; return the seconds until that debt is paid. First come, first served."""
        if not self._burst:
            return 0.0
        self._tokens = min(float(self._burst), self._tokens + max(0.0, now_s - self._at_s) * self._rate)
        self._at_s = max(self._at_s, now_s)
        self._tokens -= 1.0
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate
