"""One codec per protocol annotation or structured label: text to typed value and back, without I/O and without opinion.

`parse` takes the mapping of an object's annotations (or labels, where its parameter says so). A missing key is None or
the protocol's own default; text that cannot be read is a Malformed value, never an exception, unless the protocol says
that bad text counts as missing.
"""
