"""What a program says about itself, and its sense of time: clock, logging, metrics, health."""
