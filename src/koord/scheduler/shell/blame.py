"""Whose fault an exception is: the plugin in whose method it was raised."""

from __future__ import annotations

from koord.scheduler.framework.plugin import Plugin

UNKNOWN = "framework"


def raised_by(error: BaseException) -> str:
    """The name of the innermost plugin on the way to the error.

    Looked up in the traceback, because wrapping every call would cost the calls that go well, which are all but none.
    """
    name = UNKNOWN
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, Plugin):
            name = owner.name
        trace = trace.tb_next
    return name


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
