"""This package keeps recent samples in bounded memory. Pure: samples arrive with their times, no clock is read."""
