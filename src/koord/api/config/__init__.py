"""This package holds component configuration: the shapes that operators write, their defaults, and validation.

Every module has models, `defaulted*` (fills in what was omitted) and `validate*` (a list of field errors,
empty when all is well). Nothing here reads a file.
"""
