"""From facts, samples and the machine's files to the frozen view of each strategy. Pure."""
