"""`koord migrate` and `koord migrations`: PodMigrationJobs by hand."""
