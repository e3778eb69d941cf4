"""What others take from results: boxes of faces as COCO (JSON), for annotation tools, and content credentials (C2PA).

Credentials are a manifest in a result, signed with the user's certificate. They need the extra `c2pa`.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ficgan.errors import InputError, UsageError
from ficgan.images.photo import DIGITAL_SOURCE_TYPE
from ficgan.records import SYNTHETIC_ACTIONS, Record

if TYPE_CHECKING:
    from ficgan.video.project import Project

# As the viewer sees them.
LANDMARKS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")


class Picture(NamedTuple):
    """A photo or a frame of a film: its name, width and height (px), and annotations of COCO without their numbers."""

    name: str
    size: tuple[int, int]
    boxes: list[dict[str, Any]]

    def add(self, box: Sequence[float], landmarks: Any, attributes: dict[str, str], **more: Any) -> None:
        """A box, cut at the picture's border, unless it lies outside.

        Our pixel centres are at integers, those of the tools half a pixel further on.
        """
        x0, y0 = (max(0.0, float(value) + 0.5) for value in box[:2])
        x1, y1 = (min(float(most), float(value) + 0.5) for value, most in zip(box[2:], self.size, strict=True))
        if x1 - x0 < 0.5 or y1 - y0 < 0.5:
            return
        sides = round(x1 - x0, 2), round(y1 - y0, 2)
        place = {"bbox": [round(x0, 2), round(y0, 2), *sides], "area": round(sides[0] * sides[1], 2)}
        points = [v for x, y in landmarks for v in (round(x + 0.5, 2), round(y + 0.5, 2), 2)]
        marks = {"keypoints": points or [0] * 15, "num_keypoints": len(landmarks)}
        kind = {"category_id": 1, "iscrowd": 0, "segmentation": []}
        self.boxes.append({**kind, **place, **marks, "attributes": attributes, **more})


def of_records(records: Iterable[Record]) -> tuple[list[Picture], list[str]]:
    """The photos of side-cars, and a sentence for each record that has no boxes to give."""
    pictures, notes = [], []
    for record in records:
        if record.is_film:
            notes.append(f"{record.path}: a film's side-car holds no boxes; name its project folder")
            continue
        pictures.append(Picture(record.path, record.data["size"], []))
        for face in record.faces:
            pictures[-1].add(face["box"], face["landmarks"], {"action": face["action"]}, score=float(face["score"]))
    return pictures, notes


def of_project(project: Project) -> list[Picture]:
    """Every frame of a film with its tracks; frames without a face are there, too."""
    from ficgan.video.tracks import FILLED, PADDED, UNSURE, TrackSet

    origins = {FILLED: "filled", PADDED: "padded", UNSURE: "padded"}
    size, tracks = (project.source.width, project.source.height), TrackSet(project.tracks)
    names = [f"{Path(project.source.name).stem}/frame_{frame:06d}.png" for frame in range(len(project.pts))]
    pictures = [Picture(name, size, []) for name in names]
    for frame, picture in enumerate(pictures):
        for track, row in tracks.at(frame):
            if track.kind:
                continue
            attributes = {"origin": origins.get(int(track.origin[row]), "seen"), "person": str(track.person)}
            score, points = round(float(track.scores[row]), 4), track.landmarks[row].tolist()
            picture.add(track.boxes[row], points, attributes, score=score, track_id=track.id)
    return pictures


def coco(pictures: Iterable[Picture]) -> bytes:
    """COCO's object detection with keypoints; `score`, `attributes` and `track_id` are what FiftyOne adds."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, picture in enumerate(pictures, 1):
        width, height = picture.size
        images.append({"id": number, "file_name": picture.name, "width": width, "height": height})
        annotations += [
            {"id": n, "image_id": number, **box} for n, box in enumerate(picture.boxes, len(annotations) + 1)
        ]
    skeleton = [[1, 3], [2, 3], [3, 4], [3, 5], [4, 5]]
    category = {"id": 1, "name": "face", "supercategory": "person", "keypoints": LANDMARKS, "skeleton": skeleton}
    tree = {
        "info": {"description": "Faces found by ficgan", "version": "1.0"},
        "licenses": [],
        "images": images,
        "annotations": annotations,
        "categories": [category],
    }
    return json.dumps(tree, separators=(",", ":")).encode() + b"\n"


# -- content credentials -----------------------------------------------------------------------------------------------

# IPTC's term for a picture edited without a generative model.
_BY_HAND = "http://cv.iptc.org/newscodes/digitalsourcetype/humanEdits"


class Credentials:
    """Signs results. The manifest holds the actions done, and of the source nothing: no name, hash or thumbnail.

    Args:
        certificate: PEM file with the certificate, and those between it and the root.
        key: PEM file with its private key, not encrypted: EC P-256, P-384 or P-521, RSA, or Ed25519.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        try:
            import c2pa
        except ImportError:
            raise UsageError("--sign needs the extra c2pa: pip install 'ficgan[c2pa]'") from None
        try:
            texts = [path.read_bytes() for path in (certificate, key)]
        except OSError as error:
            raise UsageError(f"--sign {error.filename}: cannot be read ({error.strerror})") from error
        self._c2pa, self._paths = c2pa, (certificate, key)
        self._context = c2pa.Context.from_dict({"builder": {"thumbnail": {"enabled": False}}})
        try:
            self._signer = c2pa.Signer.from_info(c2pa.C2paSignerInfo(_algorithm(key, texts[1]), *texts, None))
            self.photo(_DOT, ".gif", ["solid"])  # what is wrong with the two is known before any work
        except c2pa.C2paError as error:
            raise UsageError(f"--sign {certificate} {key}: these cannot sign ({error})") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._paths  # another process reads the files again

    def takes(self, suffix: str) -> bool:
        """Whether files with this suffix (".jpg") can hold a manifest."""
        return suffix.lower().lstrip(".") in self._c2pa.Builder.get_supported_mime_types()

    def photo(self, data: bytes, suffix: str, actions: Iterable[str]) -> bytes:
        """A photo's file, with this suffix, with a manifest of what was done to each face (`FaceResult.action`)."""
        signed = io.BytesIO()
        self._builder(Counter(actions)).sign(self._signer, suffix.lower().lstrip("."), io.BytesIO(data), signed)
        return signed.getvalue()

    def film(self, path: Path, faces: Mapping[str, int]) -> None:
        """Sign a finished film in place; `faces` counts the faces of all frames by what was done to them."""
        signed = path.with_name(f".{path.stem}.signed{path.suffix}")
        try:
            self._builder(faces).sign_file(path, signed, self._signer)
            os.replace(signed, path)
        except (self._c2pa.C2paError, OSError) as error:
            signed.unlink(missing_ok=True)
            raise InputError(f"{path}: is made, but cannot be signed ({error}); sign it with another tool") from error

    def _builder(self, faces: Mapping[str, int]) -> Any:
        from ficgan import __version__

        agent = {"name": "ficgan", "version": __version__}
        generated = any(faces.get(action) for action in SYNTHETIC_ACTIONS)
        kind = DIGITAL_SOURCE_TYPE if generated else _BY_HAND
        edits = [
            {"action": "c2pa.edited", "softwareAgent": agent, "description": _described(action, number)}
            for action, number in sorted(faces.items())
            if number
        ]
        actions = [{"action": "c2pa.created", "digitalSourceType": kind, "softwareAgent": agent}, *edits]
        assertion = {"label": "c2pa.actions.v2", "data": {"actions": actions}}
        return self._c2pa.Builder({"claim_generator_info": [agent], "assertions": [assertion]}, self._context)


def _described(action: str, number: int) -> str:
    done = "left as found" if action == "kept" else f"hidden ({action})"
    if action in SYNTHETIC_ACTIONS:
        done = "replaced by a generated one"
    return f"{number} face{'' if number == 1 else 's'}: {done}"


def _algorithm(path: Path, text: bytes) -> str:
    """C2PA's name for what a private key signs with."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"--sign {path}: is no private key in PEM that is not encrypted; convert it") from error
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return {256: "es256", 384: "es384"}.get(key.key_size, "es512")
    return "ps256" if isinstance(key, rsa.RSAPrivateKey) else "ed25519"


# A picture of one pixel.
_DOT = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)
