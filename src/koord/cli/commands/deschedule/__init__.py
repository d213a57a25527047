"""`koord deschedule`: dry runs of the descheduler."""
