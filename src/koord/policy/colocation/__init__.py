"""How much of a node is lent out, and what must be written for others to know: pure decisions that keep their terms."""
