"""This package implements CustomResourceDefinitions: validation, names, deletion, served resources."""
