"""The entry points of the programs (koord-scheduler, koord-manager, koordlet and others), and their flags."""
