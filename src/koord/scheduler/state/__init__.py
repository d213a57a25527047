"""The cluster as decisions see it: nodes as rows of columns, pods as shared shapes. One writer, no I/O."""
