"""This module lists the errors of a call without usable response, after which a running program tries again
later.
"""

from __future__ import annotations

import msgspec

from koord.kube.connection import BadConfig
from koord.kube.transport import Unreachable

# Credentials can be unusable for a while, as when a token file is being rotated: that must not end a running program.
OUTAGE: tuple[type[Exception], ...] = (Unreachable, BadConfig, msgspec.DecodeError)
