"""`koord node`: what is on one node and who holds it."""
