"""slo-controller-config as the controllers read it: typed, defaulted, with the last good value of a broken document."""
