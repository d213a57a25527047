"""Wire types, names and keys of Koordinator's protocol, and the table of custom resources."""
