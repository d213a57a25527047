"""The entry points of koord-scheduler, koord-manager, koord-descheduler and koordlet, and their flags."""
