"""The slo-controller-config as the controllers read it: typed, defaulted, the last good one when it breaks."""
