"""Reports that let a person check what the manager decided about a node: terms, differences, history. Pure."""
