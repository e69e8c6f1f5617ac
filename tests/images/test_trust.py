"""Which certificates are added."""

from pathlib import Path

import pytest

from images.trust import certificates, extra_certificates
from orchestrator.errors import ImageBuildError

CERT = "-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n"
CERT_A = b"-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----"
CERT_B = b"-----BEGIN CERTIFICATE-----\nQkJC\n-----END CERTIFICATE-----"


def test_without_a_bundle_the_administrators_own_certificates_are_taken(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.crt").write_text(CERT % "QkJC")
    (tmp_path / "sub" / "a.pem").write_text(CERT % "QUFB")
    (tmp_path / "README").write_text(CERT % "Q0ND")
    found = extra_certificates(None, anchors=(tmp_path, tmp_path / "absent"))
    assert found.decode() == CERT % "QUFB" + CERT % "QkJC"


def test_no_certificates_of_the_house_is_fine(tmp_path: Path) -> None:
    assert extra_certificates(None, anchors=(tmp_path,)) == b""


def test_a_bundle_takes_their_place(tmp_path: Path) -> None:
    (tmp_path / "host.crt").write_text(CERT % "QkJC")
    bundle = tmp_path / "bundle"
    bundle.write_text(CERT % "QUFB")
    assert extra_certificates(bundle, anchors=(tmp_path,)).decode() == CERT % "QUFB"


def test_a_bundle_without_certificates_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.write_text("hello")
    with pytest.raises(ImageBuildError, match="no PEM certificate"):
        extra_certificates(bundle)
    with pytest.raises(ImageBuildError, match="No such file"):
        extra_certificates(tmp_path / "absent")


def test_certificates_are_put_in_order_and_stand_once() -> None:
    first = certificates([b"# a\n" + CERT_A + b"\n# b\n" + CERT_B + b"\n"])
    second = certificates([CERT_B.replace(b"\n", b"\r\n") + b"\r\n", CERT_A, CERT_A])
    assert first == second == CERT_A + b"\n" + CERT_B + b"\n"


def test_private_keys_beside_certificates_are_left_out() -> None:
    pem = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n" + CERT_A
    assert certificates([pem]) == CERT_A + b"\n"
