"""Which pod is tried next, and what each of the others is waiting for. Pure: the time is an argument, nothing blocks.

    add ---------------> active -----pop-----> in flight -----done-----> gone (bound)
     |  PreEnqueue         ^ ^                     |
     v                     | |                     | failed
    gated ---re-checked----+ |                     v
                             +---- back-off <--- error, or an event of this flight could help
                             |        ^
                             |        | event, and its back-off is not over yet
                             +-- unschedulable <-- refused: waits for an event that a refusing plugin listens to

A pod is known to the queue under its UID in exactly one of these five parts from `add` until `delete` or `done`.
"""
