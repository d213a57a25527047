"""One document of the configuration as programs use it: the last good value, whatever was written since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import msgspec

from koord.api.config.field_error import FieldError
from koord.manager.configuration.document import Read, Unread

T = TypeVar("T")

State = Literal["Unknown", "Default", "Applied", "Rejected"]
Parse = Callable[[str], Read[T] | Unread]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one document, in the shape of a condition."""

    key: str
    state: State
    reason: str = ""
    message: str = ""


class Kept(Generic[T]):
    """The last good value of one document; the defaults until `available`.

    `error` is set while what the cluster says is not in use: the text was rejected, or there is no ConfigMap.
    `remarks`
    are parts of a good document that have no effect.
    """

    def __init__(self, key: str, parse: Parse[T]) -> None:
        default = parse("")
        if isinstance(default, Unread):
            raise ValueError(f"{key}: no settings at all must be readable, got {default.flaw}")
        self.key = key
        self.value: T = default.value
        self.available = False
        self.error = ""
        self.remarks: tuple[str, ...] = ()
        self.standing = Standing(key=key, state="Unknown", reason="NotSeen", message="the ConfigMap was not read yet")
        self._default: T = default.value
        self._parse = parse
        self._handlers: list[Callable[[], object]] = []

    @property
    def seen(self) -> bool:
        """Return whether the ConfigMap, or its absence, is known; `value` may still be the defaults."""
        return self.standing.state != "Unknown"

    def on_change(self, handler: Callable[[], object]) -> None:
        """Call `handler` whenever `value`, `available` or the presence of an error changed."""
        self._handlers.append(handler)

    def take(self, text: str | None) -> Unread | None:
        """Update from the text that the ConfigMap has under this key; None when it lacks the key."""
        result = self._parse(text or "")
        if isinstance(result, Unread):
            return self._reject(result)
        self.remarks = tuple(worded(self.key, remark) for remark in result.remarks)
        if text:
            self.standing = Standing(key=self.key, state="Applied", reason="Applied", message="; ".join(self.remarks))
        else:
            self.standing = Standing(key=self.key, state="Default", reason="NotSet", message="the defaults are in use")
        self._settle(result.value, "")
        return None

    def absent(self, message: str) -> None:
        """Note that there is no ConfigMap and none was seen before: the defaults are in use, and `message` says so."""
        self.standing = Standing(key=self.key, state="Default", reason="ConfigMapNotFound", message=message)
        self._settle(self._default, message)

    def _reject(self, unread: Unread) -> Unread:
        stays = "the last good settings stay in use" if self.available else "nothing is changed until it is corrected"
        message = f"{worded(self.key, unread.flaw)}; {stays}"
        reason = "Unreadable" if unread.json else "InvalidValue"
        self.standing = Standing(key=self.key, state="Rejected", reason=reason, message=message)
        self.remarks = ()
        changed = not self.error
        self.error = message
        if changed:
            self._tell()
        return unread

    def _settle(self, value: T, error: str) -> None:
        changed = not self.available or value != self.value or bool(error) != bool(self.error)
        self.value, self.available, self.error = value, True, error
        if changed:
            self._tell()

    def _tell(self) -> None:
        for handler in self._handlers:
            handler()


def worded(key: str, flaw: FieldError) -> str:
    """Format which setting is wrong, what it holds and why, in one line."""
    path = f"{key}: {flaw.field}" if flaw.field else key
    shown = "" if flaw.value is None else f" is {msgspec.json.encode(flaw.value).decode()[:80]},"
    return f"{path}{shown} {flaw.rule}"
