"""One document of the configuration as programs use it: the last good value, whatever was written since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import msgspec

from koord.api.config.field_error import FieldError
from koord.manager.configuration.documents import ParsedDocument, RejectedDocument

T = TypeVar("T")

DocumentState = Literal["Unknown", "Default", "Applied", "Rejected"]
DocumentParser = Callable[[str], ParsedDocument[T] | RejectedDocument]


class DocumentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one document, in the shape of a condition."""

    key: str
    state: DocumentState
    reason: str = ""
    message: str = ""


class LastGoodDocument(Generic[T]):
    """The last good value of one document; the defaults until `available`.

    `error` is set while what the cluster says is not in use: the text was rejected, or there is no ConfigMap. `remarks`
    are parts of a good document that have no effect.
    """

    def __init__(self, key: str, parse: DocumentParser[T]) -> None:
        default = parse("")
        if isinstance(default, RejectedDocument):
            raise ValueError(f"{key}: no settings at all must be readable, got {default.error}")
        self.key = key
        self.value: T = default.value
        self.available = False
        self.error = ""
        self.remarks: tuple[str, ...] = ()
        self.status = DocumentStatus(
            key=key, state="Unknown", reason="NotSeen", message="the ConfigMap was not read yet"
        )
        self._default: T = default.value
        self._parse = parse
        self._handlers: list[Callable[[], object]] = []

    @property
    def is_known(self) -> bool:
        """Return whether the ConfigMap, or its absence, is known; `value` may still be the defaults."""
        return self.status.state != "Unknown"

    def on_change(self, handler: Callable[[], object]) -> None:
        """Call `handler` whenever `value`, `available` or the presence of an error changed."""
        self._handlers.append(handler)

    def update(self, text: str | None) -> RejectedDocument | None:
        """Update from the text that the ConfigMap has under this key; None when it lacks the key."""
        result = self._parse(text or "")
        if isinstance(result, RejectedDocument):
            return self._reject(result)
        self.remarks = tuple(describe_error(self.key, remark) for remark in result.remarks)
        if text:
            self.status = DocumentStatus(
                key=self.key, state="Applied", reason="Applied", message="; ".join(self.remarks)
            )
        else:
            self.status = DocumentStatus(
                key=self.key, state="Default", reason="NotSet", message="the defaults are in use"
            )
        self._store(result.value, "")
        return None

    def mark_absent(self, message: str) -> None:
        """Note that there is no ConfigMap and none was seen before: the defaults are in use, and `message` says so."""
        self.status = DocumentStatus(key=self.key, state="Default", reason="ConfigMapNotFound", message=message)
        self._store(self._default, message)

    def _reject(self, unread: RejectedDocument) -> RejectedDocument:
        stays = "the last good settings stay in use" if self.available else "nothing is changed until it is corrected"
        message = f"{describe_error(self.key, unread.error)}; {stays}"
        reason = "Unreadable" if unread.is_unreadable else "InvalidValue"
        self.status = DocumentStatus(key=self.key, state="Rejected", reason=reason, message=message)
        self.remarks = ()
        changed = not self.error
        self.error = message
        if changed:
            self._notify()
        return unread

    def _store(self, value: T, error: str) -> None:
        changed = not self.available or value != self.value or bool(error) != bool(self.error)
        self.value, self.available, self.error = value, True, error
        if changed:
            self._notify()

    def _notify(self) -> None:
        for handler in self._handlers:
            handler()


def describe_error(key: str, flaw: FieldError) -> str:
    """Format which setting is wrong, what it holds and why, in one line."""
    path = f"{key}: {flaw.field}" if flaw.field else key
    shown = "" if flaw.value is None else f" is {msgspec.json.encode(flaw.value).decode()[:80]},"
    return f"{path}{shown} {flaw.rule}"
