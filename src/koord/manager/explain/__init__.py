"""What the manager decided about a node, told so that a person can check it: terms, differences, history. Pure."""
