"""The cluster as decisions see it: nodes as rows of columns, pods with shared shapes. One writer, no I/O."""
