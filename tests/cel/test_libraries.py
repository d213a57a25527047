"""The libraries that Kubernetes adds to CEL answer as its documentation says."""

from __future__ import annotations

from typing import Any

import pytest

from koord.cel.evaluation import evaluate, unknown_names
from koord.cel.syntax import CelError, parse

VARIABLES = {"m": {"a": {"b": 1}}, "l": [3, 1, 2]}


def value(text: str) -> Any:
    node = parse(text)
    assert not isinstance(node, CelError), node.message
    assert unknown_names(node, frozenset(VARIABLES)) == []
    return evaluate(node, VARIABLES)


# Expressions and their values, which tests/real compares with those of a real kube-apiserver.
VALUES: list[tuple[str, Any]] = [
    ("isQuantity('1.5Gi') && !isQuantity('1.5Qi')", True),
    ("quantity('50k').add(quantity('1')).sub(1) == quantity('50000')", True),
    ("quantity('1500m').isInteger()", False),
    ("quantity('2k').asInteger()", 2000),
    ("quantity('1500m').asApproximateFloat()", 1.5),
    ("sign(quantity('-1'))", -1),
    ("semver('1.2.3').isLessThan(semver('1.10.0'))", True),
    ("semver('1.0.0-alpha.2').compareTo(semver('1.0.0-alpha.10'))", -1),
    ("semver('1.0.0-rc.1').isLessThan(semver('1.0.0')) && semver('1.0.0+a') == semver('1.0.0+b')", True),
    ("semver('v1.02', true).minor() == 2 && semver('v1.02', true).patch() == 0", True),
    ("isSemver('1.0') || isSemver('01.0.0')", False),
    ("isSemver('v1.0', true)", True),
    ("ip('192.168.0.1').family()", 4),
    ("isIP('::ffff:1.2.3.4') || isIP('1.2.3') || isIP('fe80::1%eth0')", False),
    ("ip.isCanonical('2001:db8::abcd') && !ip.isCanonical('2001:DB8::ABCD')", True),
    ("ip('127.0.0.1').isLoopback() && ip('fe80::1').isLinkLocalUnicast()", True),
    ("ip('192.168.0.1').isGlobalUnicast() && !ip('255.255.255.255').isGlobalUnicast()", True),
    ("cidr('192.168.0.0/24').containsIP('192.168.0.9')", True),
    ("cidr('192.168.0.0/24').containsIP(ip('192.168.1.9'))", False),
    ("cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16')) && !cidr('10.0.0.0/8').containsCIDR('::/0')", True),
    ("string(cidr('10.0.0.7/24').masked()) + ' ' + string(cidr('10.0.0.7/24').ip())", "10.0.0.0/24 10.0.0.7"),
    ("cidr('::1/128').prefixLength()", 128),
    ("isCIDR('10.0.0.0') || isCIDR('10.0.0.0/33')", False),
    ("url('https://user@example.com:8443/a b?x=1&x=2'.replace(' ', '%20')).getPort()", "8443"),
    ("url('https://[::1]:80/p').getHostname() + url('https://[::1]:80/p').getHost()", "::1[::1]:80"),
    ("url('https://example.com/?k=1&k=2').getQuery()", {"k": ["1", "2"]}),
    ("url('/path').getScheme() == '' && url('/path').getEscapedPath() == '/path'", True),
    ("isURL('example.com') || isURL('https://a b')", False),
    ("format.dns1123Label().validate('my-name').hasValue()", False),
    ("format.named('dns1123Label').value().validate('My').value()[0].contains('lower case')", True),
    ("format.named('nothing').hasValue()", False),
    ("format.uuid().validate('x').value()", ["does not match the UUID format"]),
    ("'abc 123 456'.find('[0-9]+') + ' ' + '123 456'.findAll('[0-9]*', 1)[0]", "123 123"),
    ("'a1b22'.findAll('[0-9]+')", ["1", "22"]),
    ("sets.contains([1, 2, 3], [2, 3]) && !sets.contains([1], [2])", True),
    ("sets.equivalent([1, 1, 2], [2, 1]) && sets.intersects([1, 2], [2, 3])", True),
    ("'%s %d %.1f: %s, %x'.format(['x', 2, 1.25, [1, {'a': 'b'}], 255])", 'x 2 1.2: [1, {"a":"b"}], ff'),
    (
        "'tacocat'.charAt(3) + string('a,b,c'.split(',', 2).size()) + '%e'.format([1.5])",
        "o21.500000\u00d710\u2070\u2070",
    ),
    ("'abab'.indexOf('b', 2) + 'abab'.lastIndexOf('a') + [5, 6, 6].indexOf(6) + [5, 6, 6].lastIndexOf(6)", 8),
    ("strings.quote('a \"b\"\\n')", '"a \\"b\\"\\n"'),
    ("l.sort() + l.reverse() + l.slice(0, 1)", [1, 2, 3, 2, 1, 3, 3]),
    ("[1, 1, 2].distinct() + [[1], [2, 3]].flatten() + lists.range(2)", [1, 2, 1, 2, 3, 0, 1]),
    ("l.first().value() + l.last().value()", 5),
    ("m.?a.?b.orValue(0) + m.?x.b.orValue(10) + m[?'a'].orValue({'b': 5}).b", 12),
    ("optional.none().or(optional.of(4)).value() + optional.ofNonZeroValue(0).orValue(3)", 7),
    ("optional.of(2).optMap(x, x * 2).value() + m.?a.optFlatMap(a, a.?b).value()", 5),
    ("l.all(i, v, i < v + 2) && l.exists(i, v, i == 2 && v == 2)", True),
    ("m.transformMap(k, v, k == 'a', v.b + 1)", {"a": 2}),
    ("l.transformList(i, v, i * v)", [0, 1, 4]),
    ("{'a': 'x'}.transformMapEntry(k, v, {v: k})", {"x": "a"}),
]


@pytest.mark.parametrize(("text", "expected"), VALUES)
def test_values(text: str, expected: Any) -> None:
    found = value(text)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("quantity('x')", "quantities must match"),
        ("quantity('1500m').asInteger()", "cannot convert value to integer"),
        ("semver('1')", "not a version"),
        ("ip('1.2.3.4.5')", 'IP Address "1.2.3.4.5" parse error'),
        ("cidr('1.2.3.4')", "network address parse error"),
        ("url('x')", "URL parse error"),
        ("quantity('1').compareTo(semver('1.0.0'))", "no such overload: compareTo(kubernetes.Quantity"),
        ("'%d'.format(['x'])", "%d does not take a string"),
        ("'%s %s'.format(['x'])", "index 1 out of range"),
        ("'x'.find('(')", "Illegal regex"),
        ("optional.none().value()", "optional.none() dereference"),
        ("l.slice(1, 9)", "cannot slice(1, 9), list is length 3"),
        ("lists.range(1000000)", "at most 100000"),
        ("l.transformMapEntry(i, v, {'same': v})", "key same already exists"),
    ],
)
def test_faults(text: str, why: str) -> None:
    found = value(text)
    assert isinstance(found, CelError)
    assert why in found.message


@pytest.mark.parametrize("text", ["cel.bind(1, 2, 3)", "l.transformList(v, v)", "l.all(1, v, true)", "m.?[0]"])
def test_wrong_macros_are_refused(text: str) -> None:
    assert isinstance(parse(text), CelError)
