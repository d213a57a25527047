"""Numbers that a program publishes: what they are, where they are held, and the text in which they are served."""
