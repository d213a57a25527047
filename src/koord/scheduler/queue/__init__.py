"""Hold the pods that wait to be scheduled and decide which is tried next. Pure: the time is an argument, nothing
blocks.

    add ---------------> active -----pop-----> in flight -----done-----> gone (bound)
     |  PreEnqueue         ^ ^                     |
     v                     | |                     | attempt_failed
    gated ---re-checked----+ |                     v
                             +---- back-off <--- error, or an event during the attempt could help
                             |        ^
                             |        | event, and its back-off is not over yet
                             +-- unschedulable <-- rejected: waits for an event that a rejecting plugin listens to

A pod is known to the queue under its UID in exactly one of these five parts from `add` until `delete` or `done`.
"""
