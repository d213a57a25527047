"""ClusterColocationProfiles at admission: matching and applying. Shared by pods and reservations."""
