"""Find the plugin in whose method an exception was raised."""

from __future__ import annotations

from koord.scheduler.framework.plugin import Plugin

UNKNOWN = "framework"


def raised_by(error: BaseException) -> str:
    """Return the name of the innermost plugin on the traceback of the error.

    The traceback is searched because wrapping every call would slow down the calls that succeed, which are nearly all.
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
