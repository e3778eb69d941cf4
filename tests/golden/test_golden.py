"""The net: what is published, measured and trained stays as `golden.json` has it, or a commit says what moved and why.

    python tests/golden/test_golden.py [ENTRY…]      renews entries that begin so, or all, and names those that moved

Everything goes through the commands, so that code may move freely below them. An entry holds digests (`… sha`), which
are compared where this machine's libraries compute as those did that the file was made with (`libraries`), and coarse
values, which are compared everywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
import yaml
from PIL import Image

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent.parent
FILE = Path(__file__).with_name("golden.json")
LEVELS = 2
"""Largest difference of a mean colour on another machine, of 255."""
NEAR, STRAY = 0.02, 0.1
"""Largest difference of a figure there, absolute or relative, and the share of figures that may differ more."""
TEXTS = {"note", "notes", "title", "warnings", "not_covered", "linkable", "doubt", "reversible_by", "data_licence"}
"""Keys of sentences, which may be worded anew."""
UNSTABLE = {"ficgan", "version", "tool", "schema", "sha256", "input_sha256", "options", "timing", "seconds"}
"""Keys of what is known otherwise (files, by their pixels), or differs with clocks, versions and names of options."""
Entry = dict[str, Any]


# -- inputs: made of two pictures of the repository and of the mean face -----------------------------------------------


def page(
    size: tuple[int, int], *placed: tuple[Image.Image, tuple[int, int]], back: tuple[int, ...] = (120, 130, 110)
) -> Image.Image:
    """Pictures on a plain ground."""
    made = Image.new("RGB", size, back)
    for picture, at in placed:
        made.paste(picture, at)
    return made


def make_world(folder: Path) -> None:
    """Twelve photos, four films, three scans, two scans each of three people, and 30 people for experiments."""
    astronaut = Image.open(ROOT / "tools" / "astronaut.jpg").convert("RGB")
    group = Image.open(ROOT / "docs" / "group.jpg").convert("RGB")  # above: six faces that a network made
    heads = [group.crop((256 * n, 0, 256 * n + 256, 256)) for n in range(6)]
    for name in ("photos", "films", "scans", "clouds", "people"):
        (folder / name).mkdir()
    make_photos(folder / "photos", astronaut, heads)
    make_films(folder / "films", astronaut.crop((100, 0, 340, 240)), [head.resize((140, 140)) for head in heads])
    make_scans(folder)
    make_people(folder / "people", [np.asarray(head.resize((128, 128), Image.Resampling.BOX)) for head in heads])
    boxes = [
        {
            "file": path.name,
            "split": "val" if n % 6 < 2 else "train",
            "label": "ab"[n // 2 % 2],
            "bboxes": [[30, 25, 100, 115]],
        }
        for n, path in enumerate(sorted(folder.glob("people/*.png")))
    ]
    (folder / "scenes.json").write_text(json.dumps(boxes))
    quick = yaml.safe_load((ROOT / "configs" / "eval" / "quick.yaml").read_text()) | {"resamples": 20}
    people = str(folder / "people")
    one = quick.pop("set") | {"name": "people", "path": people, "labels": f"{people}/labels.csv", "size": 52}
    one["split"] |= {"background": 12, "attacker": 4, "test": 5, "enrolment": 0.5}  # 52 px: the face has 32 of them
    quick |= {"sets": [one], "recognisers": ["dlib", "shape"], "detector": "yunet"}
    (folder / "quick.yaml").write_text(yaml.safe_dump(quick))


def make_photos(folder: Path, astronaut: Image.Image, heads: Sequence[Image.Image]) -> None:
    astronaut.save(folder / "one.jpg", quality=92)
    page((800, 560), (heads[0], (10, 20)), (heads[3], (280, 60)), (heads[4], (530, 290))).save(folder / "several.png")
    ramp = np.mgrid[:240, :320].sum(0)[..., None] * [0.4, 0.3, 0.2]
    Image.fromarray(ramp.astype(np.uint8)).save(folder / "none.jpg")
    heads[1].convert("L").save(folder / "grey.jpg")
    clear = heads[2].copy()
    clear.putalpha(Image.radial_gradient("L").point(range(255, -1, -1)))
    clear.save(folder / "clear.png")
    cv2.imwrite(str(folder / "deep.png"), np.asarray(heads[5])[..., ::-1].astype(np.uint16) * 257 + 3)
    heads[3].resize((40, 40)).save(folder / "tiny.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    astronaut.rotate(90, expand=True).crop((0, 100, 512, 420)).save(folder / "turned.jpg", exif=exif)
    page((1800, 1350), (heads[1].resize((900, 900)), (450, 200))).save(folder / "large.jpg")
    page((300, 256), (heads[4], (150, 0))).save(folder / "cut.webp", lossless=True)
    tilted = heads[0].rotate(25, Image.Resampling.BICUBIC, fillcolor=(120, 130, 110))
    page((400, 400), (tilted, (70, 70))).save(folder / "tilted.tif", compression="tiff_lzw")
    page((512, 256), (heads[2], (0, 0)), (heads[5], (256, 0))).quantize(200).save(folder / "palette.png")


def make_films(folder: Path, face: Image.Image, heads: Sequence[Image.Image], frames: int = 8) -> None:
    """A face that moves, two people, a cut between two, and nobody; uncompressed, so that nothing encodes them."""
    size = 320, 240
    cut = page(size, (heads[3], (40, 50)), back=(60, 60, 140)), page(size, (face, (30, 0)))
    for name, show in {
        "moving": lambda n: page(size, (face, (4 * n - 20, 0))),
        "two": lambda n: page(size, (heads[2], (2 * n, 40)), (heads[4], (170, 90 - 2 * n))),
        "cut": lambda n: cut[2 * n >= frames],
        "none": lambda n: page(size, back=(8 * n, 100, 80)),
    }.items():
        planes = (np.asarray(show(n).convert("YCbCr")).transpose(2, 0, 1).tobytes() for n in range(frames))
        head = b"YUV4MPEG2 W320 H240 F25:1 Ip A1:1 C444 XCOLORRANGE=FULL\n"
        (folder / f"{name}.y4m").write_bytes(head + b"".join(b"FRAME\n" + one for one in planes))


def make_scans(folder: Path) -> None:
    """Points of the model's mean face, moved along its shapes, with and without colours and landmarks."""
    for seed, name in enumerate(("scans/a.xyz", "scans/b.csv", "scans/c.ply")):
        points, marks = scan(seed, 0)
        if name.endswith("xyz"):
            np.savetxt(folder / name, points, "%.6f")
        elif name.endswith("csv"):
            np.savetxt(folder / name, points, "%.17g", delimiter=",")
        else:
            write_ply(folder / name, points)
        if seed != 1:  # of that one the face is looked for
            np.savetxt(folder / f"{name[:-4]}.landmarks.txt", marks)
    for person, mood in itertools.product(range(4), range(2)):
        write_ply(folder / "clouds" / f"p{person}_{mood}.ply", scan(10 + person, mood, 0.004)[0])


def scan(seed: int, mood: int, step: float = 0.002) -> tuple[np.ndarray, np.ndarray]:
    """Points of a face and its five landmarks, metres, the tip of the nose at the origin."""
    from safetensors.numpy import load_file
    from scipy.interpolate import LinearNDInterpolator

    model, rng = load_file(ROOT / "pretrained" / "linear.safetensors"), np.random.default_rng(seed)
    mesh = model["shape.mean"] + np.tensordot(rng.normal(size=20), model["shape.basis"], 1).astype(float)
    mesh = (mesh + 4 * mood * model["shape.moves"][1] - mesh[4]) * (0.0014, -0.0014, -0.0014)
    grid = np.stack(np.meshgrid(*[np.arange(-0.1, 0.1, step)] * 2), -1).reshape(-1, 2)
    grid += np.random.default_rng([seed, mood]).uniform(-0.2, 0.2, grid.shape) * step
    points = np.column_stack([grid, LinearNDInterpolator(mesh[:, :2], mesh[:, 2])(grid)])
    return points[np.isfinite(points[:, 2])], np.stack(
        [mesh[[33, 133]].mean(0), mesh[[362, 263]].mean(0), mesh[4], mesh[61], mesh[291]]
    )


def write_ply(path: Path, points: np.ndarray) -> None:
    kinds = {"x": "float", "y": "float", "z": "float", "red": "uchar", "green": "uchar", "blue": "uchar"}
    lines = ["ply", "format ascii 1.0", f"element vertex {len(points)}"]
    head = "\n".join([*lines, *(f"property {kind} {name}" for name, kind in kinds.items()), "end_header"])
    rows = np.hstack([points, (127 + 90 * np.sin(60 * points)).astype(int)])
    np.savetxt(path, rows, ["%.6f"] * 3 + ["%d"] * 3, header=head, comments="")


def make_people(folder: Path, faces: Sequence[np.ndarray]) -> None:
    """Two pictures each of six faces and of 24 means of two or three of them."""
    rng, lines = np.random.default_rng(0), ["file,person,gender"]
    mixes = [mix for count in (1, 2, 3) for mix in itertools.combinations(faces, count)][:30]
    for (person, mix), number in itertools.product(enumerate(mixes), range(2)):
        pixels = np.mean(mix, 0) * rng.uniform(0.8, 1.1) + rng.normal(0, 6, faces[0].shape)
        name = f"{person:02d}-{number}.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name)
        lines.append(f"{name},{person},{'fm'[person % 2]}")
    (folder / "labels.csv").write_text("\n".join(lines))


# -- what is done with them: a command each ----------------------------------------------------------------------------

PHOTOS = {
    "ficgan": "--seed 7",
    "layer-4": "--seed 7 --layer 4 --keep-kind none",
    "plain": "--mode plain",
    "blur": "--mode blur",
    "mosaic": "--mode mosaic",
    "k-same": "--seed 7 --mode k-same-pixel:k=10 --background {world}/people",
}
# Without loss: x264 gives the same frames other bytes now and then.
FILMS = {
    name: f"{options} --codec ffv1"
    for name, options in (("ficgan", "--seed 7"), ("solid", "--mode solid"), ("blur", "--mode blur"))
}
SCANS = ("centroid-voxel", "uniform-noise", "tapering", "merge-2-faces", "smooth-knn", "pmp")
_SET = "--data {world}/people --labels {world}/people/labels.csv --aligned --size 32 --detector yunet --judge dlib "
_SET += "--resamples 20 "
STUDIES = {
    "quick": "eval run {world}/quick.yaml --jobs 1 --no-report",
    "ficgan": "eval paper ficgan " + _SET + "--layer 0 --layer 5 --limit 6",
    "fantomas": "eval paper fantomas " + _SET + "--jobs 1 --general ridge --general "
    "autoencoder:size=32,linear=none,epochs=1",
    "revelio": "eval paper revelio " + _SET + "--config revelio64 --attacker ridge --attacker "
    "Revelio=revelio:preset=tiny,size=32,epochs=1,samples=3,precision=float32 "
    "--set candidates=2 --set probes=3 --set outside=3 --set pictures=0 --set sweep=1 --set outsiders=3 "
    "--set identities=3 --set fine_tuned=1 --set tune_steps=1 --set estimator=[8,4,4] --set adapt_epochs=1",
    "obfuscation": "eval paper obfuscation --config obfuscation-small --images {world}/people --annotations "
    "{world}/scenes.json --set crop=32 --set resize=32 --set min_scale=0.6 --set epochs=2 --set drop_every=2 "
    "--set batch=16 --set lr=0.05 --set seeds=[0] --set device=cpu",
    "pointcloud": "pointcloud evaluate pointcloud-small strengths=[12,30] costly=[12] resamples=20 prepared=true "
    "detector=yunet timed=0 --scans {world}/clouds --jobs 1",
}
TRAINING = (
    "train tiny model.resolution=16 model.channel_base=128 model.channel_max=8 model.id_dim=16 model.w_dim=16 "
    "model.spatial_channels=4 discriminator.channel_base=128 discriminator.channel_max=8 optimizer.batch=4 "
    "loss.r1_interval=2 swap.mean_fraction=0.5 swap.crossover=0.3 schedule.total_kimg=0.048 schedule.tick_kimg=0.016 "
    "schedule.snapshot_kimg=0.048 --data {world}/people --device cpu --progress none"
)


def run(command: str, world: Path, out: Path) -> Entry:
    """What a command says at its end."""
    from ficgan.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            main.main([*command.format(world=world).split(), "-o", str(out)], standalone_mode=False)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    assert code in (0, 3), command
    return {"exit": code, **(json.loads(said.getvalue().splitlines()[-1]) if "--quiet" in command else {})}


def photos(mode: str, world: Path, out: Path) -> Iterator[tuple[str, Entry]]:
    yield "all", stable(run(f"deid {world}/photos --jobs 1 --quiet {PHOTOS[mode]}", world, out))
    for path in sorted((world / "photos").iterdir()):
        pixels = cv2.imread(str(out / path.name), cv2.IMREAD_UNCHANGED)
        yield path.name, {"pixels sha": sha(pixels), "grid": grid(pixels), **record(out / path.name)}


def films(mode: str, world: Path, out: Path) -> Iterator[tuple[str, Entry]]:
    names = sorted(path.stem for path in (world / "films").iterdir())
    yield "all", stable(run(f"deid {world}/films --quiet {FILMS[mode]}", world, out))
    for name in names:
        with av.open(str(out / f"{name}.mp4")) as film:
            frames = np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)])
        shown = "".join(grid(frames[n]) for n in (0, len(frames) // 2, -1))
        yield name, {"pixels sha": sha(frames), "grid": shown, **record(out / f"{name}.mp4")}


def scans(method: str, world: Path, out: Path) -> Iterator[tuple[str, Entry]]:
    import trimesh

    inputs = " ".join(str(world / "scans" / name) for name in ("a.xyz", "b.csv", "c.ply"))
    target = f"--target {world}/clouds/p0_0.ply" if method == "merge-2-faces" else ""
    more = f"--method {method} --strength 20 --points 3000 --seed 7 {target}"
    run(f"pointcloud anonymise {inputs} --quiet {more}", world, out)
    for name in ("a.xyz", "b.csv", "c.ply"):
        result = out / f"{name[0]}.ply"
        cloud: Any = trimesh.load(result)
        points = np.round(cloud.vertices, 6)
        colours = sha(np.asarray(cloud.colors)) if name == "c.ply" else ""
        figures = np.percentile(1000 * points, range(0, 101, 10), axis=0).round(1).tolist()
        told = stable(json.loads(Path(f"{result}.json").read_text()))
        yield name, {"points sha": sha(points), "colours sha": colours, "record sha": sha(told), "figures": figures}


def study(name: str, world: Path, out: Path) -> Iterator[tuple[str, Entry]]:
    run(f"{STUDIES[name]} --quiet", world, out)
    results = json.loads((out / "results.json").read_text())
    figures = {
        " | ".join(filter(None, (one.get(key) for key in ("method", "scenario", "recogniser", "attacker")))): [
            rounded(figure["value"]) for figure in one["figures"] if figure["value"] is not None
        ]
        for one in (*results["utilities"], *results["trials"])
    }
    if (out / "paper.json").is_file():
        tables = [table["rows"] for table in json.loads((out / "paper.json").read_text())["tables"]]
        yield "tables", {"sha": sha(stable(tables))} | ({} if figures else {"figures": stable(tables)})
    parts = {key: stable(results[key]) for key in ("sets", "methods", "trials", "utilities")}
    yield "results", {f"{key} sha": sha(part) for key, part in parts.items()} | {"figures": figures}


def measure(_: str, world: Path, out: Path) -> Iterator[tuple[str, Entry]]:
    run(f"measure --aligned {world}/people --limit 10 --layer 0 --detector yunet --quiet", world, out)
    lines = json.loads((out / "bars.json").read_text())["lines"]
    figures = {
        " | ".join(filter(None, (one[key] for key in ("row", "setting", "judge")))): rounded(one["value"])
        for one in lines
        if one["value"] is not None
    }
    yield "lines", {"sha": sha(stable(lines)), "figures": figures}


def training(_: str, world: Path, out: Path) -> Iterator[tuple[str, Entry]]:
    from safetensors.numpy import load_file

    run(TRAINING, world, out)
    state = load_file(out / "state.safetensors")
    for part, names in itertools.groupby(sorted(state), lambda name: name.partition(".")[0]):
        tensors = [state[name].astype(float).round(4) for name in names]
        yield (
            part,
            {
                "weights sha": sha([one.tolist() for one in tensors]),
                "figures": [rounded(float(np.sqrt(np.mean(one**2)))) for one in tensors],
            },
        )


GROUPS: dict[str, tuple[Callable[[str, Path, Path], Iterator[tuple[str, Entry]]], Sequence[str]]] = {
    "photos": (photos, tuple(PHOTOS)),
    "films": (films, tuple(FILMS)),
    "scans": (scans, SCANS),
    "study": (study, tuple(STUDIES)),
    "measure": (measure, ("bars",)),
    "training": (training, ("tiny",)),
}
SLOW = GROUPS.keys() - {"photos", "films"}
RUNS = [(kind, one) for kind, (_, some) in GROUPS.items() for one in some]


def made(kind: str, one: str, world: Path, out: Path) -> dict[str, Entry]:
    return {f"{kind}/{one}/{name}": entry for name, entry in GROUPS[kind][0](one, world, out)}


# -- entries -----------------------------------------------------------------------------------------------------------


def sha(what: Any) -> str:
    """Of an array with its shape and type, or of JSON."""
    if isinstance(what, np.ndarray):
        what = [what.shape, str(what.dtype), hashlib.sha256(np.ascontiguousarray(what).tobytes()).hexdigest()]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def grid(pixels: np.ndarray) -> str:
    """Mean colours of 8×8 fields, two hexadecimal digits each."""
    pixels = (pixels >> 8 if pixels.dtype == np.uint16 else pixels).astype(np.float32)
    return bytes(cv2.resize(pixels, (8, 8), interpolation=cv2.INTER_AREA).round().astype(np.uint8)).hex()


def rounded(value: float) -> float:
    return float(f"{value:.5g}") if math.isfinite(value) else value


def stable(tree: Any) -> Any:
    """JSON without texts and without what differs from run to run; numbers of five digits."""
    if isinstance(tree, Mapping):
        return {key: stable(one) for key, one in tree.items() if key not in TEXTS | UNSTABLE}
    if isinstance(tree, list):
        return [stable(one) for one in tree]
    return rounded(tree) if isinstance(tree, float) else tree


def record(result: Path) -> Entry:
    told = json.loads(result.with_name(result.name + ".json").read_text())
    actions = [face["action"] for face in told["faces"]] if "faces" in told else told["faces_by_action"]
    told.pop("settings", None)
    return {"record sha": sha(stable(told)), "actions": actions}


def libraries(*, torch: bool) -> dict[str, str]:
    """What the libraries below make of the same numbers: where one differs, this is another machine."""
    import onnx
    import onnxruntime

    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (64, 64, 3), np.uint8)
    x, w = rng.normal(size=(1, 16, 32, 32)).astype(np.float32), rng.normal(size=(16, 16, 3, 3)).astype(np.float32)
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"]), onnx.helper.make_node("GlobalAveragePool", ["y"], ["z"])]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("x", 1, x.shape)],
        [value("y", 1, None), value("z", 1, None)],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    packed, film = io.BytesIO(), io.BytesIO()
    Image.fromarray(picture).resize((50, 40)).save(packed, "JPEG")
    with av.open(film, "w", format="matroska") as out:
        stream: Any = out.add_stream("libx264", rate=25, width=64, height=64, pix_fmt="yuv420p")
        out.mux([*stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")), *stream.encode(None)])
    with av.open(io.BytesIO(film.getvalue())) as read:
        frame = next(read.decode(video=0)).to_ndarray(format="rgb24")
    moved = cv2.warpAffine(cv2.GaussianBlur(picture, (0, 0), 1.7), np.array([[1.1, 0.2, 3], [-0.2, 0.9, 5]]), (80, 80))
    found = {
        "numpy": sha(np.linalg.svd(x[0, 0] @ x[0, 1])[0]),
        "opencv": sha(moved),
        "onnxruntime": sha(np.concatenate([one.ravel() for one in session.run(None, {"x": x})])),
        "pillow": sha(np.asarray(Image.open(packed))),
        "ffmpeg": sha(frame),
    }
    if torch:
        from torch import nn, tensor

        image, weight = tensor(x), tensor(w, requires_grad=True)
        nn.functional.conv2d(image, weight).square().mean().backward()
        assert weight.grad is not None
        found["torch"] = sha(weight.grad.numpy())
    return found


@contextlib.contextmanager
def alike() -> Iterator[None]:
    """One core, no GPU, and none of the models that this machine may have: the same everywhere."""
    from threadpoolctl import threadpool_limits

    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as empty, pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        for name, value in {
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "FICGAN_MODELS": "",
            "XDG_CACHE_HOME": empty,
            "TORCH_HOME": empty,
        }.items():
            patch.setenv(name, value)
        os.sched_setaffinity(0, {max(cores)})  # encoders take as many threads as there are cores, and differ
        try:
            yield
        finally:
            os.sched_setaffinity(0, cores)


def moved(stored: Mapping[str, Entry], found: Mapping[str, Entry], exact: bool) -> list[str]:
    """A line for each part of an entry that is not as it was."""
    lines = []
    for name in sorted({**stored, **found}):
        if name not in stored or name not in found:
            lines.append(f"{name} is {'new' if name in found else 'gone'}")
            continue
        for part in {**stored[name], **found[name]}:
            before, after = stored[name].get(part), found[name].get(part)
            if part.endswith("sha"):
                how = "moved" if exact and before != after else ""
            else:
                how = changed(before, after, exact)
            lines += [f"{name}: {part} {how}"] if how else []
    return lines


def changed(before: Any, after: Any, exact: bool) -> str:
    """How far coarse values moved; "" where they are as they were, or near enough on another machine."""
    if isinstance(before, str) and isinstance(after, str) and len(before) == len(after):
        one, other = (np.frombuffer(bytes.fromhex(text), np.uint8).astype(int) for text in (before, after))
        levels = np.abs(one - other).max(initial=0)
        return f"moved by up to {levels} of 255 levels" if levels > (0 if exact else LEVELS) else ""
    one, other = dict(leaves(before)), dict(leaves(after))
    off = [
        f"{key} {one.get(key)} → {other.get(key)}"
        for key in {**one, **other}
        if not near(one.get(key), other.get(key), 0 if exact else NEAR)
    ]
    return f"{len(off)} of {len(one)}: {'; '.join(off[:5])}" if len(off) > (0 if exact else STRAY * len(one)) else ""


def near(one: Any, other: Any, far: float) -> bool:
    numbers = all(isinstance(value, int | float) for value in (one, other))
    return bool(one == other or (numbers and math.isclose(one, other, rel_tol=far, abs_tol=far)))


def leaves(tree: Any, *place: object) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | list):
        for key, one in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(one, *place, key)
    else:
        yield "/".join(map(str, place)), tree


# -- the test, and the command that renews -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "one"), [pytest.param(*run, marks=[pytest.mark.slow] * (run[0] in SLOW)) for run in RUNS]
)
def test_nothing_moved(kind: str, one: str, world: Path, tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text())
    with alike():
        here = libraries(torch=kind in SLOW)
        if other := [name for name, value in here.items() if value != golden["libraries"][name]]:
            warnings.warn(f"other results of {', '.join(other)} here: digests are not compared", stacklevel=1)
        found = made(kind, one, world, tmp_path / "out")
    stored = {name: entry for name, entry in golden.items() if name.startswith(f"{kind}/{one}/")}
    assert not moved(stored, found, not other), (
        f"see {tmp_path}; if meant: python tests/golden/test_golden.py {kind}/{one}"
    )


def renew(only: Sequence[str]) -> None:
    stored = json.loads(FILE.read_text()) if FILE.exists() else {}
    with alike(), tempfile.TemporaryDirectory() as name:
        here, world = libraries(torch=True), Path(name, "world")
        if only and stored and here != stored["libraries"]:
            raise SystemExit("golden.json was made where other libraries, or another processor, are: renew all of it")
        world.mkdir()
        make_world(world)
        chosen = [run for run in RUNS if not only or "/".join(run).startswith(tuple(only))]
        found = {}
        for kind, one in chosen:
            found |= made(kind, one, world, Path(name, f"{kind}-{one}"))
    before = {key: stored[key] for key in stored if any(key.startswith(f"{a}/{b}/") for a, b in chosen)}
    print("\n".join(moved(before, found, True)) or "nothing moved")
    kept = {key: one for key, one in stored.items() if key not in before} | found | {"libraries": here}
    lines = (f"{json.dumps(key)}: {json.dumps(kept[key], separators=(',', ':'))}" for key in sorted(kept))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    renew(sys.argv[1:])
