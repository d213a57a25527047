"""Generation of structural OpenAPI schemas and CustomResourceDefinitions from the wire types."""
