"""The parts of the scheduler that do I/O."""
