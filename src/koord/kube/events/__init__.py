"""The event recorder and the correlator that folds repeated events into series."""
