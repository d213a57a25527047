"""This package holds the codecs of protocol annotations and structured labels, by topic: text to typed value
and back.

`parse_*` takes the mapping of an object's annotations (or labels, where its parameter says so). A missing
key is None or the protocol's own default; text that cannot be read is a MalformedAnnotation, never an
exception, unless the protocol says that bad text counts as missing.
"""
