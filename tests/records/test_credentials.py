"""Content credentials, with certificates that are made here; what was signed is read by c2pa's own reader."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stand_ins import certificate

from ficgan.errors import UsageError

c2pa = pytest.importorskip("c2pa")

from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa  # noqa: E402

from ficgan.records.exports import Credentials  # noqa: E402

KEYS = {
    "ec256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ec384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
}
PEM = serialization.Encoding.PEM


def actions_of(format_: str, data: bytes) -> tuple[str, list[dict[str, Any]]]:
    """c2pa's verdict, and the actions of the manifest."""
    reader = c2pa.Reader(format_, io.BytesIO(data))
    (assertion,) = [each for each in reader.get_active_manifest()["assertions"] if each["label"] == "c2pa.actions.v2"]
    return reader.get_validation_state(), assertion["data"]["actions"]


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return Credentials(*certificate(tmp_path_factory.mktemp("keys"), KEYS["ec256"]()))


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "GIF"])
def test_a_photo_tells_what_was_done_and_changes_no_pixel(format_: str, credentials: Credentials) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, format_)
    signed = credentials.photo(data.getvalue(), f".{format_.lower()}", ["generated", "masked", "retried", "kept"])
    before, after = (np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in (data.getvalue(), signed))
    np.testing.assert_array_equal(before, after)
    state, actions = actions_of(format_.lower(), signed)
    assert state == "Valid"
    assert [each["action"] for each in actions] == ["c2pa.created", *["c2pa.edited"] * 4]
    assert actions[0]["digitalSourceType"].endswith("/compositeWithTrainedAlgorithmicMedia")
    covered = credentials.photo(data.getvalue(), f".{format_.lower()}", ["masked"])
    assert actions_of(format_.lower(), covered)[1][0]["digitalSourceType"].endswith("/humanEdits")


def test_a_film_is_signed_in_place(credentials: Credentials, tmp_path: Path) -> None:
    import av

    path = tmp_path / "film.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in range(5):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 * level, np.uint8), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    credentials.film(path, {"generated": 12, "solid": 3, "blurred": 0})
    state, actions = actions_of("mp4", path.read_bytes())
    assert state == "Valid" and [each["action"] for each in actions] == ["c2pa.created", "c2pa.edited", "c2pa.edited"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["film.mp4"]
    with av.open(str(path)) as file:
        assert sum(1 for _ in file.decode(video=0)) == 5


@pytest.mark.parametrize("wrong", ["absent", "swapped", "not PEM", "another key", "encrypted", "a curve of its own"])
def test_what_cannot_sign_is_one_sentence(wrong: str, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, KEYS["ec256"]())
    secret = serialization.BestAvailableEncryption(b"x") if wrong == "encrypted" else serialization.NoEncryption()
    if wrong == "absent":
        key.unlink()
    elif wrong == "swapped":
        cert, key = key, cert
    elif wrong == "not PEM":
        cert.write_bytes(b"x")
    else:
        curve = ec.SECP256K1() if wrong == "a curve of its own" else ec.SECP256R1()
        other = ec.generate_private_key(curve)
        key.write_bytes(other.private_bytes(PEM, serialization.PrivateFormat.PKCS8, secret))
    with pytest.raises(UsageError) as error:
        Credentials(cert, key)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
