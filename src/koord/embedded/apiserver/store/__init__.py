"""The object store: revisioned objects, the events between revisions, and a journal on disk when asked for.

There is one writer: everything here runs on the server's event loop and changes state without awaiting, so a verb that
reads, decides and writes in one go needs no lock. Only the journal has a thread of its own.
"""
