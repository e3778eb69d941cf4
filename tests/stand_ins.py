"""Detectors, faces and pictures made up, for tests that need no network."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from click.testing import CliRunner
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from ficgan.anonymizers import Faces
from ficgan.faces import Alignment, Face

Image = NDArray[np.uint8]


@dataclass
class Fixed:
    """A detector that finds what it was told, and counts how often it is asked."""

    faces: list[Face] = field(default_factory=list)
    name: str = "fixed"
    asked: int = 0

    def detect(self, image: Image) -> list[Face]:
        self.asked += 1
        return list(self.faces)


def invoke(command: Any, *words: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, whose errors are sentences."""
    done = CliRunner().invoke(command, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    assert "Traceback" not in done.stderr
    return done.exit_code, done.stdout, done.stderr


class Reader:
    """A recogniser that says the same of every face; subclasses read something."""

    name = "gate"
    metric = "euclidean"
    match_threshold = 0.5

    def embed(self, image: Image, landmarks: Any) -> NDArray[np.float32]:
        return np.zeros((len(np.asarray(landmarks)), 2), np.float32)

    def distance(self, a: Any, b: Any) -> float:
        return 1 - cosine(a, b) if self.metric == "cosine" else float(np.linalg.norm(np.asarray(a) - b))

    def is_match(self, a: Any, b: Any) -> bool:
        return not self.distance(a, b) >= self.match_threshold


def cosine(a: Any, b: Any) -> float:
    """Of two vectors, by the schoolbook."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(sum(x * y) / (sum(x * x) ** 0.5 * sum(y * y) ** 0.5))


@dataclass
class Judge(Reader):
    """A recogniser that takes the first `stubborn` outputs that it reads for their source."""

    stubborn: int = 0
    name: str = "gate"
    width: int = 2
    match_threshold: float = 0.5
    calls: list[NDArray[np.float32]] = field(default_factory=list)

    def embed(self, image: Image, landmarks: NDArray[np.float32]) -> NDArray[np.float32]:
        assert all(np.ptp(points, axis=0).min() > 0 for points in landmarks), "no recogniser reads a shapeless face"
        recognised = len(self.calls) <= self.stubborn
        self.calls.append(landmarks)
        return np.full((len(landmarks), self.width), 0.0 if recognised else 3.0, np.float32)


def face(x: float, y: float, size: float) -> Face:
    """A face that fills the square of this corner and size."""
    points = Alignment().points(int(size)).astype(np.float32) + np.array([x, y], np.float32)
    return Face(np.array([x, y, x + size, y + size], np.float32), points, 0.9)


def photo(height: int = 160, width: int = 220, seed: int = 1) -> Image:
    """Noise."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def faces_of(images: Image, per_person: int = 1) -> Faces:
    """Pictures with names and people."""
    return Faces(images, tuple(f"{i}.png" for i in range(len(images))), people=np.arange(len(images)) // per_person)


def noise(count: int = 2, side: int = 32, seed: int = 0, per_person: int = 1) -> Faces:
    return faces_of(np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8), per_person)


def random_faces(n: int, size: int = 32, seed: int = 0, smooth: float = 2.0, per_person: int = 1) -> Faces:
    """n pictures: one common pattern, one of each its own, both band-limited by a Gaussian of `smooth` pixels."""
    fields = np.random.default_rng(seed).normal(size=(n + 1, size, size, 3))
    fields = gaussian_filter(fields, (0, smooth, smooth, 0), mode="mirror")
    fields /= fields.std(axis=(1, 2, 3), keepdims=True)
    return faces_of(np.clip(np.rint(128 + 30 * fields[1:] + 20 * fields[:1]), 0, 255).astype(np.uint8), per_person)


def certificate(folder: Path, key: Any = None) -> tuple[Path, Path]:
    """A certificate of a key with the authority that issued it, and the key, as PEM files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    root, now, pem = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC), serialization.Encoding.PEM
    key = key or ec.generate_private_key(ec.SECP256R1())

    def issued(name: str, public: Any, authority: bool) -> x509.Certificate:
        def named(text: str) -> x509.Name:
            return x509.Name(
                [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Desk"), x509.NameAttribute(NameOID.COMMON_NAME, text)]
            )

        made = x509.CertificateBuilder(named("root"), named(name), public, x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=9))
        made = made.add_extension(x509.BasicConstraints(authority, None), True)
        made = made.add_extension(
            x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False), True
        )
        made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), False)
        if not authority:
            made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), False)
        return made.sign(root, hashes.SHA256())

    chain = issued("desk", key.public_key(), False), issued("root", root.public_key(), True)
    (folder / "cert.pem").write_bytes(b"".join(one.public_bytes(pem) for one in chain))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


def random_network(path: Path, *, constant: bool = False) -> Path:
    """A convolution, pooling and a linear layer of random weights, or one that says the same of every picture."""
    rng = np.random.default_rng(0)
    arrays = {"c": rng.normal(0, 0.05, (8, 3, 16, 16)), "l": rng.normal(0, 0.3, (8 * 49, 16))}
    arrays |= {"l": arrays["l"] * (not constant), "e": np.full(16, float(constant))}
    weights = [onnx.numpy_helper.from_array(values.astype(np.float32), name) for name, values in arrays.items()]
    nodes = [
        onnx.helper.make_node("Conv", ["x", "c"], ["a"], strides=[16, 16]),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("Flatten", ["b"], ["f"]),
        onnx.helper.make_node("Gemm", ["f", "l", "e"], ["y"]),
    ]
    ends = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", ["n", 3, 112, 112]), ("y", ["n", 16]))]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path
