"""Component configuration: the shapes that operators write, their defaults, and what is wrong with a given one.

Every module has models, `defaulted` (fills in what was left out) and `validate` (a list of field errors, empty when all
is well). Nothing here reads a file.
"""
