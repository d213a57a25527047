"""The object store: revisioned objects, the events between revisions, and a journal on disk when asked
for.

There is one writer: everything here runs on the server's event loop and changes state without awaiting,
so a verb that reads, decides and writes in one go needs no lock. Only the journal has a thread of its
own.
"""

from koord.embedded.apiserver.store.collection import Collection, TooOld
from koord.embedded.apiserver.store.journal import Journal, JournalFailed
from koord.embedded.apiserver.store.record import Event, Record
from koord.embedded.apiserver.store.store import Store
from koord.embedded.apiserver.store.watcher import Watcher

__all__ = ["Collection", "Event", "Journal", "JournalFailed", "Record", "Store", "TooOld", "Watcher"]
