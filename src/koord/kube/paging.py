"""This module follows continue tokens until a list is complete. Decoding a page is left to the PageDecoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from koord.kube import verb
from koord.kube.caller import Caller
from koord.kube.listing import Listing, Misfit, Page
from koord.kube.refused import Refused, from_answer
from koord.kube.transport import Body, Request

T = TypeVar("T")
Reader = Callable[[Body], tuple[Page[T], list[Misfit]]]


async def collect(caller: Caller, first: Request, read: Reader[T]) -> Listing[T] | Refused:
    """List all pages. A token that expires on the way restarts the list, once and in one page, which has no token
    to expire.
    """
    request, restarted = first, False
    items: list[T] = []
    misfits: list[Misfit] = []
    while True:
        answer = await caller.send(request)
        if not answer.ok:
            refused = from_answer(answer)
            if refused.expired and "continue" in request.query and not restarted:
                request, restarted = verb.in_one_page(first), True
                items, misfits = [], []
                continue
            return refused
        page, unfit = read(answer.body)
        items.extend(page.items)
        misfits.extend(unfit)
        if not page.metadata.continue_:
            version = page.metadata.resource_version
            return Listing(items=tuple(items), resource_version=version, misfits=tuple(misfits))
        request = verb.next_page(first, page.metadata.continue_)
