"""What was measured of late, in bounded memory. Pure: samples arrive with their times, no clock is looked at."""
