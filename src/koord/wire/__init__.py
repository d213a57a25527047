"""Messages of node-level protocols as bytes and frozen structs: pure codecs, without sockets."""
