"""When a certificate is good enough, what is made anew, and what is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from koord.manager.webhook_server import cert_store
from koord.manager.webhook_server.cert_store import (
    FILE_NAMES,
    CertificateMaterial,
    find_problem,
    generate,
    material_from_files,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DNS = "koordinator-webhook-service.koordinator-system.svc"


@pytest.fixture(scope="module")
def made() -> CertificateMaterial:
    return generate(DNS, NOW)


def test_what_is_made_is_good(made: CertificateMaterial) -> None:
    assert find_problem(made, DNS, NOW) == ""
    assert cert_store.not_after(made.cert) == NOW + timedelta(days=3650)


def test_its_fields_are_those_that_others_expect(made: CertificateMaterial) -> None:
    leaf, authority = (x509.load_pem_x509_certificate(pem) for pem in (made.cert, made.ca_cert))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", DNS]
    assert leaf.not_valid_before_utc == authority.not_valid_before_utc
    assert authority.subject.rfc4514_string() == "CN=webhook-cert-ca"
    assert made.key.startswith(b"-----BEGIN RSA PRIVATE KEY-----")
    assert load_pem_private_key(made.key, None).key_size == 2048  # type: ignore[union-attr]


def test_an_address_is_proven_as_an_address() -> None:
    made = generate("10.0.0.7", NOW)
    assert find_problem(made, "10.0.0.7", NOW) == ""
    assert "not for 10.0.0.8" in find_problem(made, "10.0.0.8", NOW)


def test_another_name_makes_it_bad_and_keeps_the_authority(made: CertificateMaterial) -> None:
    assert "not for other.svc" in find_problem(made, "other.svc", NOW)
    again = generate("other.svc", NOW, made)
    assert again.ca_cert == made.ca_cert
    assert find_problem(again, "other.svc", NOW) == ""


@pytest.mark.parametrize(
    ("days_left", "good", "same_authority"),
    [
        pytest.param(200, True, False, id="seven-months-left"),
        pytest.param(180, False, False, id="less-than-half-a-year-left"),
        pytest.param(400, True, True, id="more-than-a-year-left"),
    ],
)
def test_time_runs_out(made: CertificateMaterial, days_left: int, good: bool, same_authority: bool) -> None:
    then = NOW + timedelta(days=3650 - days_left)
    assert (find_problem(made, DNS, then) == "") is good
    assert (generate(DNS, then, made).ca_cert == made.ca_cert) is same_authority


@pytest.mark.parametrize("part", ["ca_key", "ca_cert", "cert", "key"])
@pytest.mark.parametrize("content", [b"", b"nonsense"], ids=["missing", "nonsense"])
def test_a_broken_part_makes_it_bad(made: CertificateMaterial, part: str, content: bytes) -> None:
    broken = msgspec.structs.replace(made, **{part: content})
    if (part, content) == ("ca_key", b"nonsense"):  # the authority's key is not needed to serve
        assert find_problem(broken, DNS, NOW) == ""
    else:
        assert find_problem(broken, DNS, NOW)
    assert find_problem(generate(DNS, NOW, broken), DNS, NOW) == ""


def test_foreign_pairs_are_seen(made: CertificateMaterial) -> None:
    other = generate(DNS, NOW)
    assert "does not belong" in find_problem(msgspec.structs.replace(made, key=other.key), DNS, NOW)
    assert find_problem(msgspec.structs.replace(made, ca_cert=other.ca_cert), DNS, NOW)


class TestFolder:
    def test_six_files_of_one_generation(self, made: CertificateMaterial, tmp_path: Path) -> None:
        place = tmp_path / "certs"
        assert cert_store.write_cert_dir(place, made.files())
        assert set(cert_store.read_cert_dir(place)) == set(FILE_NAMES)
        assert material_from_files(cert_store.read_cert_dir(place)) == made
        assert (place / "tls.key").read_bytes() == (place / "key.pem").read_bytes() == made.key
        assert not cert_store.write_cert_dir(place, made.files()), "written again though nothing changed"

    def test_keys_are_for_their_owner_only(self, made: CertificateMaterial, tmp_path: Path) -> None:
        cert_store.write_cert_dir(tmp_path, made.files())
        modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in FILE_NAMES}
        assert {name for name, mode in modes.items() if mode == 0o600} == {"ca-key.pem", "tls.key", "key.pem"}

    def test_plain_files_give_way_to_links(self, made: CertificateMaterial, tmp_path: Path) -> None:
        (tmp_path / "tls.crt").write_text("left over")
        (tmp_path / "tls.key").mkdir()
        cert_store.write_cert_dir(tmp_path, made.files())
        assert all((tmp_path / name).is_symlink() for name in FILE_NAMES)
        assert material_from_files(cert_store.read_cert_dir(tmp_path)) == made

    def test_a_reader_keeps_its_generation_and_older_ones_go(self, made: CertificateMaterial, tmp_path: Path) -> None:
        for number in range(4):
            files = {name: content + b"%d" % number for name, content in made.files().items()}
            cert_store.write_cert_dir(tmp_path, files)
            assert cert_store.read_cert_dir(tmp_path) == files
        assert len(list(tmp_path.glob("..generation_*"))) == 2

    def test_a_failed_write_leaves_the_old_files(
        self, made: CertificateMaterial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cert_store.write_cert_dir(tmp_path, made.files())

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            cert_store.write_cert_dir(tmp_path, dict.fromkeys(FILE_NAMES, b"new"))
        assert material_from_files(cert_store.read_cert_dir(tmp_path)) == made
        assert len(list(tmp_path.glob("..generation_*"))) == 1
