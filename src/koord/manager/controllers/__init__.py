"""The controllers of koord-manager, one reconciler for each kind that it keeps in order."""
