"""The descheduling framework: a round is a pure function from a snapshot and plugins to proposed effects."""
