"""What surrounds a round: watching, carrying out, counting and telling."""
