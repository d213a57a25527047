"""Where every task of the process stands, as text: the first thing to look at when a program does nothing."""

from __future__ import annotations

import asyncio
import io
from collections import Counter

_FRAMES = 6


def tasks() -> str:
    """Dump the stacks of all asyncio tasks. Tasks with the same stack are listed once, with their number."""
    stacks: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    for task in asyncio.all_tasks():
        text = io.StringIO()
        task.print_stack(limit=_FRAMES, file=text)
        stack = "\n".join(text.getvalue().splitlines()[1:])  # the first line names the task
        stacks[stack] += 1
        names.setdefault(stack, []).append(task.get_name())
    parts = []
    for stack, count in stacks.most_common():
        shown = ", ".join(sorted(names[stack])[:5])
        parts.append(f"{count} at this place: {shown}{', ...' if count > 5 else ''}\n{stack}\n")
    return "\n".join(parts)
