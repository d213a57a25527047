"""PodMigrationJobs at work: made, arbitrated, brought to their end one step at a time, and cleared away."""
