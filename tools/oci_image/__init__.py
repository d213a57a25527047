"""The OCI image of koord, built from Debian's packages and pinned wheels without Docker and without a registry.

`declaration` says what is in it. `debian` and `wheels` fetch and unpack, `tree` holds the files, `bytecode` compiles
them with the image's own Python, `elf` finds libraries that are missing, `layout` writes the archive, `bill` writes the
bill of materials, and `build` joins them. `tools.image` is something else: the busybox image of the tests' pods.
"""
