"""Quantities are parsed, formatted and refused as a kube-apiserver 1.35 does."""

from __future__ import annotations

import pytest

from koord.values.quantity import Format, Quantity, QuantityError

# Written to a kube-apiserver 1.35.4 as the size limits of volumes and read back.
READ_BACK = {
    "0": "0",
    "00": "0",
    "+5": "+5",
    "5": "5",
    "05": "05",
    "5.": "5.",
    ".5": "500m",
    "0.5": "500m",
    ".": "0",
    "+": "0",
    "1.5": "1500m",
    "1.500": "1.500",
    "1.234": "1.234",
    "1.2345": "1234500u",
    "0.001": "1m",
    "0.0001": "100u",
    "0.0000000001": "1n",
    "1e-10": "1e-9",
    "1n": "1n",
    "1u": "1u",
    "1m": "1m",
    "100m": "100m",
    "1000m": "1",
    "1100m": "1100m",
    "2500m": "2500m",
    "999999m": "999999m",
    "1000000m": "1k",
    "100000": "100k",
    "123456": "123456",
    "1000": "1k",
    "1k": "1k",
    "1000k": "1M",
    "1024": "1024",
    "1024k": "1024k",
    "1M": "1M",
    "1G": "1G",
    "1T": "1T",
    "1P": "1P",
    "1E": "1E",
    "12E": "12E",
    "1E3": "1E3",
    "1e3": "1e3",
    "12e6": "12e6",
    "12e+6": "12e+6",
    "1e-3": "1e-3",
    "1.5e3": "1500",
    "1e1": "10",
    "1e2": "100",
    "1e4": "10e3",
    "15e-1": "1500e-3",
    "1e21": "1e21",
    "1e19": "10e18",
    "9223372036854775807": "9223372036854775807",
    "9223372036854775808": "9223372036854775808",
    "99999999999999999999": "99999999999999999999",
    "1Ki": "1Ki",
    "2Ki": "2Ki",
    "8Ki": "8Ki",
    "512Ki": "512Ki",
    "1024Ki": "1Mi",
    "1020Ki": "1020Ki",
    "1Mi": "1Mi",
    "1.5Gi": "1536Mi",
    "0.5Gi": "512Mi",
    "0.5Ki": "512",
    "0.1Ki": "102400m",
    "0.0001Ki": "102400u",
    "1.1Ki": "1126400m",
    "1.5Mi": "1536Ki",
    "4Gi": "4Gi",
    "16Gi": "16Gi",
    "64Gi": "64Gi",
    "1Ti": "1Ti",
    "1Pi": "1Pi",
    "1Ei": "1Ei",
    "7Ei": "7Ei",
    "8Ei": "9223372036854775807",
    "100Ei": "9223372036854775807",
    "1234567Ki": "1234567Ki",
    "1048576Ki": "1Gi",
    "1025Mi": "1025Mi",
    "100Mi": "100Mi",
    "1500Mi": "1500Mi",
    "0Ki": "0",
    "0m": "0",
    "0.0": "0",
    "0e5": "0",
    "m": "0",
    "Ki": "0",
    "e3": "0",
    "123456789012345678": "123456789012345678",
    "1234567890123456789": "1234567890123456789",
    "0.123456789": "123456789n",
    "0.1234567891": "123456790n",
    "3.000": "3",
    "10.000": "10",
    "1000.5": "1000500m",
    "65535.999": "65535.999",
    ".5Ki": "512",
    "+1.5Gi": "1536Mi",
    "1e1000000": "10e999999",
    "33554432Ki": "32Gi",
    "5000000000": "5G",
    "1500000000n": "1500m",
    "2000000u": "2",
}

FORMAT_WRONG = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
NUMERIC_WRONG = "unable to parse numeric part of quantity"
SUFFIX_WRONG = "unable to parse quantity's suffix"


@pytest.mark.parametrize(("written", "shown"), READ_BACK.items())
def test_text_is_the_one_the_api_server_shows(written: str, shown: str) -> None:
    assert str(Quantity.parse(written)) == shown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        pytest.param("+123456789012345678", "+123456789012345678", id="eighteen-digits"),
        pytest.param("+1234567890123456789", "1234567890123456789", id="nineteen-digits"),
        pytest.param("+12345678901Ki", "+12345678901Ki", id="longest-kibi"),
        pytest.param("+123456789012Ki", "123456789012Ki", id="longer-kibi"),
        pytest.param("+12345Gi", "+12345Gi", id="longest-gibi"),
        pytest.param("+1234567Gi", "1234567Gi", id="longer-gibi"),
    ],
)
def test_a_needless_sign_is_kept_on_short_literals_only(written: str, shown: str) -> None:
    assert str(Quantity.parse(written)) == shown


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("1", Format.DECIMAL_SI),
        ("1m", Format.DECIMAL_SI),
        ("1E", Format.DECIMAL_SI),
        ("1e3", Format.DECIMAL_EXPONENT),
        ("1E3", Format.DECIMAL_EXPONENT),
        ("1Ki", Format.BINARY_SI),
        ("1.5Ki", Format.BINARY_SI),
        ("0.0Ki", Format.BINARY_SI),
        ("0.0001Ki", Format.DECIMAL_SI),
    ],
)
def test_format(text: str, format: Format) -> None:
    assert Quantity.parse(text).format is format


@pytest.mark.parametrize("shown", [shown for shown in READ_BACK.values() if shown != "10e999999"])
def test_shown_text_is_stable(shown: str) -> None:
    assert str(Quantity.parse(shown)) == shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", FORMAT_WRONG, id="empty"),
        pytest.param("abc", FORMAT_WRONG, id="word"),
        pytest.param("1x", FORMAT_WRONG, id="unknown-letter"),
        pytest.param("1.2.3", FORMAT_WRONG, id="two-points"),
        pytest.param("1 0", FORMAT_WRONG, id="space-inside"),
        pytest.param("1_0", FORMAT_WRONG, id="underscore"),
        pytest.param("\uff11", FORMAT_WRONG, id="digit-of-another-script"),
        pytest.param("1e+-3", FORMAT_WRONG, id="two-signs-in-exponent"),
        pytest.param("1mm", SUFFIX_WRONG, id="suffix-twice"),
        pytest.param("1e", SUFFIX_WRONG, id="exponent-without-digits"),
        pytest.param("1E+", SUFFIX_WRONG, id="exponent-with-sign-only"),
        pytest.param("1ki", SUFFIX_WRONG, id="binary-kilo-in-lower-case"),
        pytest.param("1K", SUFFIX_WRONG, id="decimal-kilo-in-upper-case"),
        pytest.param("1Ki5", SUFFIX_WRONG, id="digits-after-suffix"),
        pytest.param("++5", SUFFIX_WRONG, id="two-signs"),
        pytest.param("1e99999999999999999999", SUFFIX_WRONG, id="exponent-beyond-int64"),
        pytest.param("e-10", NUMERIC_WRONG, id="below-nano-without-digits"),
        pytest.param("Ei", NUMERIC_WRONG, id="largest-suffix-without-digits"),
    ],
)
def test_malformed_text_is_refused_in_kubernetes_words(text: str, message: str) -> None:
    with pytest.raises(QuantityError) as refusal:
        Quantity.parse(text)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        pytest.param(5, "5", id="integer"),
        pytest.param(100_000, "100k", id="round-integer"),
        pytest.param(-3, "-3", id="negative-integer"),
        pytest.param(1.5, "1500m", id="fraction"),
        pytest.param(2.0, "2", id="whole-float"),
        pytest.param(1e22, "10e21", id="float-in-exponent-form"),
        pytest.param(1e-7, "100e-9", id="tiny-float"),
        pytest.param(10**30, "1e30", id="integer-beyond-int64"),
    ],
)
def test_json_numbers(number: float, shown: str) -> None:
    assert str(Quantity.parse(number)) == shown


@pytest.mark.parametrize("value", [True, None, float("nan"), float("inf"), ["1"]], ids=repr)
def test_what_is_no_json_amount_is_refused(value: object) -> None:
    with pytest.raises(QuantityError):
        Quantity.parse(value)  # type: ignore[arg-type]


def test_space_around_text_is_ignored() -> None:
    assert Quantity.parse(" 4Gi\n") == Quantity.parse("4Gi")


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        pytest.param(Quantity.from_milli(1500), "1500m", id="milli"),
        pytest.param(Quantity.from_milli(2000), "2", id="whole-milli"),
        pytest.param(Quantity.from_value(4 << 30, Format.BINARY_SI), "4Gi", id="bytes"),
        pytest.param(Quantity.from_value(1023, Format.BINARY_SI), "1023", id="bytes-below-a-kilo"),
        pytest.param(Quantity.from_milli(1024_500, Format.BINARY_SI), "1024500m", id="bytes-with-a-fraction"),
        pytest.param(Quantity.from_value(-2048, Format.BINARY_SI), "-2Ki", id="negative-bytes"),
        pytest.param(Quantity.from_value(12_000_000, Format.DECIMAL_EXPONENT), "12e6", id="exponent"),
        pytest.param(Quantity.from_scaled(7, 9), "7G", id="scaled"),
        pytest.param(Quantity.from_value(0, Format.BINARY_SI), "0", id="zero"),
    ],
)
def test_made_amounts_show_in_their_format(amount: Quantity, shown: str) -> None:
    assert str(amount) == shown


class TestBetterThanKubernetes:
    """Kubernetes loses the number here; what is shown must be read back as the same amount."""

    @pytest.mark.parametrize(
        ("amount", "shown"),
        [
            pytest.param(Quantity.parse("1000E"), "1e21", id="no-suffix-above-exa"),
            pytest.param(Quantity.parse("4Ei") * 1024, "4722366482869645213696", id="no-suffix-above-exbi"),
        ],
    )
    def test_power_without_suffix_is_kept(self, amount: Quantity, shown: str) -> None:
        assert str(amount) == shown
        assert Quantity.parse(shown) == amount

    @pytest.mark.parametrize("text", ["1e4294967296", "1e3000000000", "1e-3000000000"])
    def test_exponent_beyond_int32_is_refused_not_wrapped(self, text: str) -> None:
        with pytest.raises(QuantityError, match="suffix"):
            Quantity.parse(text)

    def test_endless_digits_are_refused(self) -> None:
        with pytest.raises(QuantityError, match="numeric part"):
            Quantity.parse("9" * 100_000)

    @pytest.mark.parametrize(
        ("text", "value", "milli"),
        [
            pytest.param("1E", 10**18, 2**63 - 1, id="milli-beyond-int64"),
            pytest.param("12E", 2**63 - 1, 2**63 - 1, id="value-beyond-int64"),
            pytest.param("-12E", -(2**63) + 1, -(2**63) + 1, id="negative-value-beyond-int64"),
            pytest.param("1e2000000000", 2**63 - 1, 2**63 - 1, id="absurd-exponent"),
            pytest.param("-0.1Ki", -103, -102_400, id="negative-fraction-away-from-zero"),
        ],
    )
    def test_integer_views_stop_at_the_ends_of_int64(self, text: str, value: int, milli: int) -> None:
        amount = Quantity.parse(text)
        assert (amount.value(), amount.milli_value()) == (value, milli)
