"""The kinds that the descheduler watches, with the models it reads them by."""

from __future__ import annotations

from koord.api.builtin import PODS as PODS
from koord.api.pod import Pod as Pod
