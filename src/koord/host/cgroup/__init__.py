"""Control groups of both versions: where pods live in the tree, what each file means, and how to read it."""
