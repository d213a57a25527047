"""ClusterColocationProfiles at admission: which match, and what they write. Shared by pods and reservations."""
