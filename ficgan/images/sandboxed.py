"""A photo decoded in a child process with limits; `main` is the child."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

from ficgan import sandbox
from ficgan.errors import InputError
from ficgan.images.photo import Photo

__all__ = ["read_photo"]

_BASE, _PIXEL = 1 << 30, 24
"""Bytes of memory for a photo, and for each of its pixels: twice 16-bit RGBA, and a decoder's own."""


def read_photo(path: Path, data: bytes, max_pixels: int) -> Photo:
    """`read_image` in a child of its own.

    Raises:
        InputError: as of `read_image`, or the photo does not keep within the limits.
    """
    usual = sandbox.LIMITS
    limits = replace(usual, memory=min(usual.memory, _BASE + _PIXEL * max_pixels))
    child = sandbox.Child("ficgan.images.sandboxed", str(path), limits)
    try:
        answer, pixels = child.ask({"path": os.fspath(path), "max_pixels": max_pixels}, data, most=8 * max_pixels)
        photo = sandbox.from_json(answer["photo"])
        if pixels is None or pixels.shape[0] * pixels.shape[1] > max_pixels:
            raise ValueError("no such picture")
        pixels.flags.writeable = False
        return Photo(path=path, pixels=pixels, **photo)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise InputError(f"{path}: its decoder gave no picture") from None
    finally:
        child.close()


def main() -> None:
    """The child."""
    from ficgan.images.read import read_image

    server = sandbox.Server()
    request, data = server.receive()
    with server.step():
        photo = read_image(request["path"], max_pixels=request["max_pixels"], data=data)
        about = {one.name: getattr(photo, one.name) for one in fields(photo) if one.name not in ("path", "pixels")}
        server.send({"photo": sandbox.to_json(about)}, photo.pixels)
    server.receive()
