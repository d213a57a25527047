"""Parse a CEL expression to a tree. A wrong expression is a CelError with its place, never an exception.

All of the grammar is read but for messages (`Type{...}`), which no policy of Kubernetes can use, and optional elements
of lists and maps (`[?x]`). Macros (`has`, `all`, `exists`, `map`, `cel.bind` and the like) are nodes of their own.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec

MAX_DEPTH = 60  # of nested expressions: no policy comes near it, and the evaluation recurses


class CelError(msgspec.Struct, frozen=True):
    """An expression that cannot be parsed or evaluated, in words."""

    message: str


class UnsignedInteger(int):
    """A CEL uint, which is another type than int."""


class Literal(msgspec.Struct, frozen=True):
    value: Any


class Identifier(msgspec.Struct, frozen=True):
    name: str


class Select(msgspec.Struct, frozen=True):
    operand: Node
    field: str


class Presence(msgspec.Struct, frozen=True):
    """The macro `has(operand.field)`."""

    operand: Node
    field: str


class Call(msgspec.Struct, frozen=True):
    """A function, a method of `target`, or an operator by its name (`_+_`, `!_`, `_[_]`, `@in`)."""

    function: str
    arguments: tuple[Node, ...]
    target: Node | None = None


class Conditional(msgspec.Struct, frozen=True):
    condition: Node
    yes: Node
    no: Node


class ListOf(msgspec.Struct, frozen=True):
    items: tuple[Node, ...]


class MapOf(msgspec.Struct, frozen=True):
    entries: tuple[tuple[Node, Node], ...]


class Comprehension(msgspec.Struct, frozen=True):
    """A macro over the elements of a list or the keys of a map, or over the one value of `cel.bind` and `optMap`."""

    macro: str  # a name of _COMPREHENSIONS, or cel.bind
    operand: Node
    variable: str
    body: Node
    condition: Node | None = None  # of `map` and the transformations, with one argument more
    value_variable: str = ""  # where there are two variables: `variable` is then the index or the key


Node: TypeAlias = Literal | Identifier | Select | Presence | Call | Conditional | ListOf | MapOf | Comprehension

# Macro -> numbers of arguments with one variable, and with two
_COMPREHENSIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "all": ((2,), (3,)),
    "exists": ((2,), (3,)),
    "exists_one": ((2,), (3,)),
    "existsOne": ((), (3,)),
    "map": ((2, 3), ()),
    "filter": ((2,), ()),
    "transformList": ((), (3, 4)),
    "transformMap": ((), (3, 4)),
    "transformMapEntry": ((), (3, 4)),
    "optMap": ((2,), ()),
    "optFlatMap": ((2,), ()),
}
# Functions of a namespace: `sets.contains(a, b)` is no method of a variable `sets`.
_NAMESPACES = frozenset(("sets", "lists", "strings", "optional"))
_NAMESPACED = frozenset(("ip.isCanonical",))
_RELATIONS = ("==", "!=", "<", "<=", ">", ">=", "in")
_RESERVED = frozenset(
    (
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package"),
        *("namespace", "return", "var", "void", "while"),
    )
)
_TOKEN = re.compile(
    r"""(?P<space>[\s]+|//[^\n]*)
    |(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<integer>0x[0-9a-fA-F]+[uU]?|\d+[uU]?)
    |(?P<string>[bBrR]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<name>[A-Za-z_]\w*)
    |(?P<symbol>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_PLAIN_ESCAPES = {
    **dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)),
    **{letter: letter for letter in "\\'\"`?"},
}


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str
    at: int


class _SyntaxFault(Exception):
    """Raised inside of this module only: `parse` returns it as a CelError."""


def parse(text: str) -> Node | CelError:
    try:
        parser = _Parser(_tokens(text))
        node = parser.expression()
        parser.expect("end")
    except _SyntaxFault as fault:
        return CelError(str(fault))
    return node


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or token.end() == at:
            raise _SyntaxFault(f"Syntax error: token recognition error at: '{text[at]}' (column {at + 1})")
        kind = token.lastgroup or ""
        if kind != "space":
            found.append(_Token("symbol" if token[0] == "in" else kind, token[0], at))
        at = token.end()
    return [*found, _Token("end", "", len(text))]


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _accept(self, *symbols: str) -> str:
        if self._next.kind == "symbol" and self._next.text in symbols:
            return self._take().text
        return ""

    def expect(self, what: str) -> str:
        token = self._next
        if token.kind == what or (token.kind == "symbol" and token.text == what):
            self._at += token.kind != "end"
            return token.text
        shown = token.text or "<EOF>"
        raise _SyntaxFault(f"Syntax error: mismatched input '{shown}' expecting {what} (column {token.at + 1})")

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _SyntaxFault(f"expression is nested deeper than {MAX_DEPTH} levels")
        node = self._or()
        if self._accept("?"):
            yes = self._or()
            self.expect(":")
            node = Conditional(node, yes, self.expression())
        self._depth -= 1
        return node

    def _or(self) -> Node:
        node = self._and()
        while self._accept("||"):
            node = Call("_||_", (node, self._and()))
        return node

    def _and(self) -> Node:
        node = self._relation()
        while self._accept("&&"):
            node = Call("_&&_", (node, self._relation()))
        return node

    def _relation(self) -> Node:
        node = self._sum()
        while symbol := self._accept(*_RELATIONS):
            node = Call("@in" if symbol == "in" else f"_{symbol}_", (node, self._sum()))
        return node

    def _sum(self) -> Node:
        node = self._product()
        while symbol := self._accept("+", "-"):
            node = Call(f"_{symbol}_", (node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._unary()
        while symbol := self._accept("*", "/", "%"):
            node = Call(f"_{symbol}_", (node, self._unary()))
        return node

    def _unary(self) -> Node:
        symbols: list[str] = []
        while symbol := self._accept("!", "-"):
            symbols.append(symbol)
        node = self._member()
        for symbol in reversed(symbols):
            if symbol == "-" and isinstance(node, Literal) and type(node.value) in (int, float):
                node = Literal(-node.value)
            else:
                node = Call(f"{symbol}_", (node,))
        return node

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._accept("."):
                optional = bool(self._accept("?"))
                name = self.expect("name")
                if optional:
                    node = Call("_?._", (node, Literal(name)))
                else:
                    node = self._method(node, name) if self._accept("(") else Select(node, name)
            elif self._accept("["):
                function = "_[?_]" if self._accept("?") else "_[_]"
                node = Call(function, (node, self.expression()))
                self.expect("]")
            else:
                return node

    def _method(self, target: Node, name: str) -> Node:
        arguments = self._arguments(")")
        if isinstance(target, Identifier):
            qualified = f"{target.name}.{name}"
            if qualified == "cel.bind":
                return self._bind(arguments)
            is_format = target.name == "format" and name != "validate"
            if target.name in _NAMESPACES or qualified in _NAMESPACED or is_format:
                return Call(qualified, arguments)
        if name not in _COMPREHENSIONS:
            return Call(name, arguments, target)
        one, two = _COMPREHENSIONS[name]
        pairs = len(arguments) in two
        variables = arguments[: 1 + pairs]
        if not (pairs or len(arguments) in one) or not all(isinstance(found, Identifier) for found in variables):
            raise _SyntaxFault(f"invalid arguments of the macro {name}")
        first, *second = (found.name for found in variables if isinstance(found, Identifier))
        condition = arguments[-2] if len(arguments) == 3 + pairs else None
        return Comprehension(name, target, first, arguments[-1], condition, second[0] if second else "")

    def _bind(self, arguments: tuple[Node, ...]) -> Node:
        if len(arguments) != 3 or not isinstance(arguments[0], Identifier):
            raise _SyntaxFault("cel.bind() takes a variable name, its value and an expression")
        return Comprehension("cel.bind", arguments[1], arguments[0].name, arguments[2])

    def _arguments(self, end: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._accept(end):
            found.append(self.expression())
            if not self._accept(","):
                self.expect(end)
                break
        return tuple(found)

    def _primary(self) -> Node:
        token = self._take()
        if token.kind == "integer":
            return Literal(_integer(token.text))
        if token.kind == "float":
            return Literal(float(token.text))
        if token.kind == "string":
            return Literal(_string(token.text))
        if token.kind == "name":
            return self._named(token)
        if token.text == "(":
            node = self.expression()
            self.expect(")")
            return node
        if token.text == "[":
            return ListOf(self._arguments("]"))
        if token.text == "{":
            return MapOf(self._entries())
        if token.text == "." and self._next.kind == "name":
            return self._named(self._take())
        shown = token.text or "<EOF>"
        raise _SyntaxFault(f"Syntax error: mismatched input '{shown}' (column {token.at + 1})")

    def _named(self, token: _Token) -> Node:
        if token.text in ("true", "false", "null"):
            return Literal({"true": True, "false": False, "null": None}[token.text])
        if token.text in _RESERVED:
            raise _SyntaxFault(f"reserved identifier: {token.text} (column {token.at + 1})")
        if not self._accept("("):
            return Identifier(token.text)
        arguments = self._arguments(")")
        if token.text != "has":
            return Call(token.text, arguments)
        if len(arguments) != 1 or not isinstance(arguments[0], Select):
            raise _SyntaxFault("invalid argument to has() macro")
        return Presence(arguments[0].operand, arguments[0].field)

    def _entries(self) -> tuple[tuple[Node, Node], ...]:
        found: list[tuple[Node, Node]] = []
        while not self._accept("}"):
            key = self.expression()
            self.expect(":")
            found.append((key, self.expression()))
            if not self._accept(","):
                self.expect("}")
                break
        return tuple(found)


def _integer(text: str) -> int:
    unsigned = text[-1] in "uU"
    digits = text.rstrip("uU")
    value = int(digits, 16) if digits.startswith("0x") else int(digits)
    return UnsignedInteger(value) if unsigned else value


def _string(text: str) -> str | bytes:
    prefix = text[: min(at for at in (text.find('"'), text.find("'")) if at >= 0)].lower()
    quoted = text[len(prefix) :]
    length = 3 if quoted[:3] in ('"""', "'''") else 1
    content = quoted[length:-length]
    if "r" not in prefix:
        content = _ESCAPE.sub(lambda found: _unescaped(found[1]), content)
    return content.encode() if "b" in prefix else content


def _unescaped(code: str) -> str:
    if code in _PLAIN_ESCAPES:
        return _PLAIN_ESCAPES[code]
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if len(code) == 3:
        return chr(int(code, 8))
    raise _SyntaxFault(f"Syntax error: unknown escape \\{code}")
