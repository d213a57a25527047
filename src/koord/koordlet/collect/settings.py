"""The settings of the collectors, which the CLI makes of flags and gates."""

from __future__ import annotations

import msgspec


class CollectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to collect and how often."""

    interval_s: float = 1.0  # between two calls of `sample`
    info_s: float = 60.0
    psi_s: float = 10.0
    cpi_s: float = 60.0
    cpi_window_s: float = 10.0
    cold_pages_s: float = 5.0
    resctrl_s: float = 10.0
    storage_s: float = 60.0
    # Switches
    psi: bool = False
    cpi: bool = False
    cold_pages: bool = False  # also switches the kernel's scanner on
    page_cache: bool = False
    resctrl: bool = False
    storage: bool = False
    gpu: bool = False

    @property
    def longest_gap_s(self) -> float:
        """Return the longest time between two reads whose difference still says something about now."""
        return 20 * self.interval_s
