"""A film decoded in a child process with limits; `main` is the child.

Times, spans and sizes are checked on this side, as for every `VideoSource`; the child gives the raw pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan import sandbox
from ficgan.errors import InputError
from ficgan.video.media import Raw, VideoInfo, VideoSource, display_name, is_url

__all__ = ["SandboxedSource"]

_MOST = 1 << 28
"""Pixels of a frame."""


class SandboxedSource(VideoSource):
    """What a child reads; `rate` is that of a sequence of images."""

    def __init__(self, text: str, rate: float | Fraction | None) -> None:
        limits = replace(sandbox.LIMITS, network=is_url(text))
        self._child = sandbox.Child("ficgan.video.sandboxed", display_name(text), limits)
        try:
            given = None if rate is None else str(Fraction(rate).limit_denominator(100_000))
            opened, _ = self._child.ask({"open": text, "rate": given})
            about = sandbox.from_json(opened["info"])
            for name in ("time_base", "rate", "sample_aspect_ratio"):
                about[name] = None if about[name] is None else Fraction(about[name])
            info = VideoInfo(**about)
            if not (0 < info.width * info.height <= _MOST and info.time_base > 0):
                raise ValueError("no such film")
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            self.close()
            raise InputError(f"{display_name(text)}: its decoder told nonsense of it") from None
        except BaseException:
            self.close()
            raise
        path = Path(text) if opened["file"] else None
        super().__init__(text if path is not None else str(opened["name"]), info, path=path, live=bool(opened["live"]))
        self._end: int | None = None

    def _pictures(self) -> Iterator[Raw]:
        self._child.ask({"begin": [self.start, self.end]})
        while True:
            answer, _ = self._child.ask({"next": True})
            if "damage" in answer:
                self._damage.extend(str(sentence) for sentence in answer["damage"])
                self._end = answer["end"] if isinstance(answer["end"], int) else None
                return
            pts, duration = (value if isinstance(value, int) else None for value in (answer["pts"], answer["duration"]))
            yield Raw(pts, duration, self._picture)

    def _picture(self) -> NDArray[np.uint8]:
        _, pixels = self._child.ask({"picture": True}, most=3 * _MOST)
        if pixels is None or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise InputError(f"{self.name}: its decoder gave no picture")
        return pixels

    def _origin(self) -> int | None:
        origin = self._child.ask({"origin": True})[0].get("origin")
        return origin if isinstance(origin, int) else None

    def _stated_end(self) -> int | None:
        return self._end

    def close(self) -> None:
        self._child.close()


def main() -> None:
    """The child: opens one film, and answers until its input ends."""
    from ficgan.video.read import open_source

    server = sandbox.Server()
    source: VideoSource | None = None
    pictures: Iterator[Raw] = iter(())
    raw: Raw | None = None
    while True:
        request, _ = server.receive()
        with server.step():
            if "open" in request:
                rate = request["rate"]
                source = open_source(request["open"], None if rate is None else Fraction(rate))
                server.send(_about(source))
            assert source is not None
            if "begin" in request:
                source.start, source.end = request["begin"]
                source._damage, pictures = [], source._pictures()
                server.send({})
            elif "origin" in request:
                server.send({"origin": source._origin()})
            elif "next" in request:
                raw = next(pictures, None)
                if raw is None:
                    server.send({"damage": source.damage, "end": source._stated_end()})
                else:
                    server.send({"pts": raw.pts, "duration": raw.duration})
            elif "picture" in request and raw is not None:
                server.send({}, raw.rgb())


def _about(source: VideoSource) -> dict[str, Any]:
    return {
        "info": sandbox.to_json(asdict(source.info)), "name": source.name, "file": source.path is not None,
        "live": source.live,
    }  # fmt: skip
