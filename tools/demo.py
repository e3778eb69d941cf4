"""`make demo`: replace the faces in two photos, and show where before and after stand.

The photos are the astronaut beside this file (Eileen Collins, NASA, public domain) and a group composed of her three
times over. Nothing is downloaded. The last line is ficgan-deid's JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

ROOT = Path(__file__).resolve().parent.parent
ASTRONAUT = Path(__file__).resolve().parent / "astronaut.jpg"
DEID = Path(sys.executable).with_name("ficgan-deid")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "demo-output", help="where the photos go")
    parser.add_argument("--command", default=str(DEID), help=argparse.SUPPRESS)
    options = parser.parse_args()
    before, after = options.output / "before", options.output / "after"
    photos = write_photos(before)
    for photo in photos:  # or a photo that fails now would show what an earlier run made of it
        for name in (photo.name, f"{photo.name}.json"):
            (after / name).unlink(missing_ok=True)
    command = [options.command, *map(str, photos), "-o", str(after), "--seed", "7", "--overwrite"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        summary = json.loads(done.stdout)
    except ValueError:
        reason = f"ficgan-deid ended with exit code {done.returncode} and no result; `ficgan doctor` may say why."
        print(reason, file=sys.stderr)
        return done.returncode or 1
    print(story(summary))
    print(f"Before: {before}   after: {after}   both beside each other:")
    for photo in photos:
        if (result := after / photo.name).is_file():
            pair = options.output / f"{photo.stem}-before-after.png"
            side_by_side(photo, result).save(pair)
            print(f"  {pair}")
    print(json.dumps(summary), flush=True)
    return done.returncode


def write_photos(folder: Path) -> list[Path]:
    """Write the photos to work on into `folder`, the single person first."""
    folder.mkdir(parents=True, exist_ok=True)
    with Image.open(ASTRONAUT) as photo:
        one = photo.convert("RGB")
    one.save(folder / "astronaut.png")
    group(one).save(folder / "group.jpg", quality=95)
    return [folder / "astronaut.png", folder / "group.jpg"]


def group(person: Image.Image) -> Image.Image:
    """Three of `person` on one canvas: as she is, mirrored at three quarters, and at half the size."""
    width, height = person.size
    canvas = Image.new("RGB", (9 * width // 4, height), tuple(np.asarray(person)[:8].mean(axis=(0, 1)).astype(int)))
    left = 0
    for scale, mirrored in ((1.0, False), (0.75, True), (0.5, False)):
        size = round(width * scale), round(height * scale)
        figure = (ImageOps.mirror(person) if mirrored else person).resize(size, Image.Resampling.LANCZOS)
        canvas.paste(figure, (left, height - size[1]))
        left += size[0]
    return canvas


def side_by_side(photo: Path, result: Path) -> Image.Image:
    """The two pictures on one canvas, beside each other, or wide ones one above the other, a white gap between them."""
    with Image.open(photo) as first, Image.open(result) as second:
        before, after = first.convert("RGB"), second.convert("RGB")
    width, height = max(before.width, after.width), max(before.height, after.height)
    shift = (0, height + 8) if width > 1.2 * height else (width + 8, 0)
    canvas = Image.new("RGB", (width + shift[0], height + shift[1]), "white")
    canvas.paste(before, (0, 0))
    canvas.paste(after, shift)
    return canvas


def story(summary: dict[str, Any]) -> str:
    """What the summary of ficgan-deid says, in sentences."""
    faces, uncovered, matched = (int(summary[key]) for key in ("faces", "uncovered", "reidentified"))
    lines = [
        f"{faces} faces in {summary['inputs']} photos; {summary['written']} written in {summary['seconds']:.1f} s.",
        "Every face found was replaced." if not uncovered else f"NOT COVERED: {uncovered} faces.",
        f"An independent recogniser still matches {matched or 'none'} of them with the source photo.",
        "k covers the new identity code; pose, expression, light and what lies around the face are the source's own.",
    ]
    if summary["failed"]:
        lines.append(f"FAILED: {summary['failed']} photos.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
