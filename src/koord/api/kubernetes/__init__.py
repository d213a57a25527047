"""Wire types of Kubernetes' own API groups, and the table of built-in kinds."""
