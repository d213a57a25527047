"""`koord simulate`: what the scheduler would decide about pods."""
