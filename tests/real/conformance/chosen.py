"""Where we differ from kube-apiserver on purpose. Each has a reason that a user would accept."""

from __future__ import annotations

# story/step -> why our answer is another one
CHOSEN: dict[str, str] = {}
