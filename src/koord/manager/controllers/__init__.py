"""One reconciler for each thing that the manager keeps in order."""
