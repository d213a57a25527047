"""The elastic quota tree: definitions, runtime quota and sums of every quota. Pure; it reads no clock and no server."""
