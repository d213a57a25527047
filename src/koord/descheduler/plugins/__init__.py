"""The plugins of the descheduler. Each reads a snapshot and proposes through its handle; none has side effects."""
