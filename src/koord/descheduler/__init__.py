"""koord-descheduler: moves pods to better places, safely."""
