"""Command lines read as pflag reads them. The messages were taken from kube-scheduler 1.35."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cli.daemons import flag_set as kind
from koord.cli.daemons.flag_set import Flag, FlagParseError, FlagSet, FlagValues

FLAGS = FlagSet(
    "prog",
    "A program.",
    {
        "Misc": [
            Flag("config", kind.TEXT, "The path."),
            Flag("secure-port", kind.INTEGER, "The port.", 10259),
            Flag("burst", kind.INTEGER32, "Burst.", 100),
            Flag("qps", kind.FLOAT32, "Rate.", 50.0),
            Flag("leader-elect", kind.BOOLEAN, "Elect.", True),
            Flag("lease", kind.DURATION, "How long.", 15_000_000_000),
            Flag("paths", kind.STRINGS, "Paths.", ("/healthz", "/readyz")),
            Flag("bind", kind.ADDRESS, "Where.", "0.0.0.0"),
            Flag("labels", kind.MAPPING, "Labels."),
            Flag("old", kind.TEXT, "Old.", no_effect_reason="nothing reads it"),
        ],
        "Logs": [
            Flag("v", kind.LEVEL, "Level.", short="v"),
            Flag("vmodule", kind.MODULES, "Modules."),
            Flag("debug-filters", kind.BOOLEAN, "Filters.", short="f"),
            Flag("debug-scores", kind.INTEGER, "Scores.", short="s"),
            Flag("feature-gates", kind.GATES, "Gates."),
        ],
    },
)


def values(*argv: str) -> FlagValues:
    read = FLAGS.parse(argv)
    assert isinstance(read, FlagValues), read
    return read


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        pytest.param([], "secure-port", 10259, id="default"),
        pytest.param(["--config=a=b"], "config", "a=b", id="equals-in-the-value"),
        pytest.param(["--config", "--v"], "config", "--v", id="next-word-whatever-it-is"),
        pytest.param(["--config="], "config", "", id="empty"),
        pytest.param(["--leader-elect"], "leader-elect", True, id="bare-boolean"),
        pytest.param(["--leader-elect=false"], "leader-elect", False, id="boolean-off"),
        pytest.param(["--leader_elect=f"], "leader-elect", False, id="underscores"),
        pytest.param(["--secure-port=0x10"], "secure-port", 16, id="hexadecimal"),
        pytest.param(["--secure-port=010"], "secure-port", 8, id="octal"),
        pytest.param(["--secure-port=0x_1f"], "secure-port", 31, id="underscore-after-the-base"),
        pytest.param(["--secure-port=1_0"], "secure-port", 10, id="underscore-between-digits"),
        pytest.param(["--lease=1m30s"], "lease", 90_000_000_000, id="duration"),
        pytest.param(["--paths=/a,/b"], "paths", ("/a", "/b"), id="list-replaces-the-default"),
        pytest.param(["--paths=/a", "--paths", "/b"], "paths", ("/a", "/b"), id="list-repeated"),
        pytest.param(['--paths="/a,b",/c'], "paths", ("/a,b", "/c"), id="list-quoted"),
        pytest.param(["--labels=a=1", "--labels=b=2,c=3"], "labels", {"a": "1", "b": "2", "c": "3"}, id="mapping"),
        pytest.param(["-v=4"], "v", 4, id="short-equals"),
        pytest.param(["-v", "4"], "v", 4, id="short-word"),
        pytest.param(["-v4"], "v", 4, id="short-joined"),
        pytest.param(["--v=4"], "v", 4, id="long-v"),
        pytest.param(["-fs3"], "debug-scores", 3, id="short-group"),
        pytest.param(["-f=false"], "debug-filters", False, id="short-boolean-off"),
        pytest.param(["--vmodule=a=1,b*=2"], "vmodule", {"a": 1, "b*": 2}, id="modules"),
        pytest.param(["--feature-gates="], "feature-gates", ("",), id="no-gates"),
        pytest.param(["--version=raw"], "version", "raw", id="version-raw"),
        pytest.param(["--version"], "version", "true", id="version-bare"),
        pytest.param(["--version=false"], "version", "", id="version-off"),
        pytest.param(["--bind=::1"], "bind", "::1", id="address"),
        pytest.param(["--qps=1e2"], "qps", 100.0, id="float"),
    ],
)
def test_values(argv: list[str], name: str, value: Any) -> None:
    assert values(*argv)[name] == value


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["--nosuch"], "unknown flag: --nosuch", id="unknown"),
        pytest.param(["-x"], "unknown shorthand flag: 'x' in -x", id="unknown-short"),
        pytest.param(["--=x"], "bad flag syntax: --=x", id="no-name"),
        pytest.param(["---x"], "bad flag syntax: ---x", id="three-dashes"),
        pytest.param(["--config"], "flag needs an argument: --config", id="needs-argument"),
        pytest.param(["-v"], "flag needs an argument: 'v' in -v", id="short-needs-argument"),
        pytest.param(["-fv"], "flag needs an argument: 'v' in -fv", id="group-needs-argument"),
        pytest.param(["extra"], '"prog" does not take any arguments, got ["extra"]', id="argument"),
        pytest.param(["--", "-v"], '"prog" does not take any arguments, got ["-v"]', id="after-the-end"),
        pytest.param(
            ["--secure-port=abc"],
            'invalid argument "abc" for "--secure-port" flag: strconv.ParseInt: parsing "abc": invalid syntax',
            id="no-number",
        ),
        pytest.param(
            ["--burst=99999999999"],
            'invalid argument "99999999999" for "--burst" flag: '
            'strconv.ParseInt: parsing "99999999999": value out of range',
            id="too-large",
        ),
        pytest.param(
            ["-v=x"],
            'invalid argument "x" for "-v, --v" flag: strconv.ParseUint: parsing "x": invalid syntax',
            id="no-level",
        ),
        pytest.param(
            ["--leader-elect=maybe"],
            'invalid argument "maybe" for "--leader-elect" flag: strconv.ParseBool: parsing "maybe": invalid syntax',
            id="no-boolean",
        ),
        pytest.param(
            ["--lease=5"],
            'invalid argument "5" for "--lease" flag: time: missing unit in duration "5"',
            id="no-unit",
        ),
        pytest.param(
            ["--vmodule=a"],
            'invalid argument "a" for "--vmodule" flag: "a" does not have the pattern=N format',
            id="no-level-of-module",
        ),
        pytest.param(
            ["--version=v9"],
            'invalid argument "v9" for "--version" flag: illegal version string "v9"',
            id="no-version",
        ),
        pytest.param(
            ["--bind=foo"], 'invalid argument "foo" for "--bind" flag: failed to parse IP: "foo"', id="no-address"
        ),
        pytest.param(
            ["--labels=x"],
            'invalid argument "x" for "--labels" flag: x must be formatted as key=value',
            id="no-mapping",
        ),
        pytest.param(
            ["--qps=x"],
            'invalid argument "x" for "--qps" flag: strconv.ParseFloat: parsing "x": invalid syntax',
            id="no-float",
        ),
    ],
)
def test_messages(argv: list[str], message: str) -> None:
    assert FLAGS.parse(argv) == FlagParseError(message)


def test_given_tells_a_default_from_the_same_value_stated() -> None:
    read = values("--secure-port=10259", "--old=x")
    assert read.is_set("secure-port")
    assert not read.is_set("config")
    assert FLAGS.set_without_effect(read) == [("old", "nothing reads it")]
    with pytest.raises(KeyError):
        read.is_set("nosuch")


def test_help_is_grouped_and_ends_reading() -> None:
    assert values("-h", "--nosuch").switch("help")
    text = FLAGS.help()
    assert "\nMisc flags:\n\n      --config string           The path.\n" in text
    assert "      --leader-elect            Elect. (default true)\n" in text
    assert "      --lease duration          How long. (default 15s)\n" in text
    assert "      --paths strings           Paths. (default [/healthz,/readyz])\n" in text
    assert "      --old string              Old. [accepted without effect: nothing reads it]\n" in text
    assert "  -v, --v Level" in text
    assert text.index("Misc flags") < text.index("Logs flags") < text.index("Global flags")
    assert max(map(len, FLAGS.help(60).splitlines())) <= 60


def test_two_flags_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="two flags"):
        FlagSet("prog", "", {"A": [Flag("a", kind.TEXT, "")], "B": [Flag("a", kind.TEXT, "")]})


def test_a_value_is_asked_for_by_its_kind() -> None:
    with pytest.raises(TypeError, match="--leader-elect"):
        values().number("leader-elect")
    assert values("--lease=1500ms").seconds("lease") == 1.5


words = st.one_of(
    st.text(max_size=8),
    st.builds(
        lambda dashes, name, rest: f"{dashes}{name}{rest}",
        st.sampled_from(["-", "--"]),
        st.sampled_from(sorted(FLAGS.flags)),
        st.one_of(st.just(""), st.text(max_size=8).map(lambda value: f"={value}"), st.just("=" + "9" * 5000)),
    ),
)


@given(st.lists(words, max_size=4))
def test_any_command_line_is_read_or_refused(argv: list[str]) -> None:
    assert isinstance(FLAGS.parse(argv), FlagValues | FlagParseError)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([str, hex, bin, oct]))
def test_every_number_reads_back(value: int, written: Callable[[int], str]) -> None:
    assert values(f"--secure-port={written(value)}").number("secure-port") == value


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5), max_size=4))
def test_lists_read_back_quoted(parts: list[str]) -> None:
    quoted = ",".join('"' + part.replace('"', '""') + '"' for part in parts)
    assert values(f"--paths={quoted}").strings("paths") == tuple(parts)
