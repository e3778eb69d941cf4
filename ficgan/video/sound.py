"""The sound of a film: copied, or recoded where the new container cannot hold it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from ficgan.errors import InputError
from ficgan.video.encode import holds
from ficgan.video.read import MAX_ERRORS, open_input
from ficgan.video.source import VideoSource

# For sound that a container cannot hold, best first, and their names.
_AUDIO_ENCODERS = {"aac": "AAC", "libopus": "Opus"}
# Bits per second of each channel.
_BIT_RATE = 96_000

# Second of decoding, packet.
Timed = tuple[float, Any]


class Sound:
    """The sound of a file on its way into PyAV's opened container `out`: copied, or recoded where it cannot be held."""

    def __init__(self, source: VideoSource, out: Any, container: str, path: Path) -> None:
        self._name, self._container, self._path = source.name, container, path
        self._recoded: dict[int, str] = {}
        # Streams of AAC as broadcasts have it, each packet in a frame. FFmpeg takes them out if the first one is.
        self._framed: set[int] = set()
        # Recoded stream → second up to which it was decoded.
        self._heard: defaultdict[int, Fraction] = defaultdict(Fraction)
        assert source.path is not None
        self._file = open_input(source.path, source.name)
        try:
            streams = self._file.streams.audio
            self._streams = [s for s in streams if s.codec_context is None or s.codec_context.sample_rate]
            self._lost = len(streams) - len(self._streams)  # nothing of them could be decoded
            self._tracks = {stream.index: self._add(out, stream) for stream in self._streams}
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._tracks)

    @property
    def starts(self) -> list[Fraction]:
        """When each stream begins, seconds."""
        return [s.start_time * s.time_base for s in self._streams if s.start_time is not None]

    @property
    def notes(self) -> list[str]:
        """What is worth knowing, each a sentence."""
        return list(dict.fromkeys(self._recoded.values()))

    @property
    def damage(self) -> list[str]:
        """What of the sound is lost, each a sentence; complete at the end."""
        return [f"{self._name}: parts of its sound are damaged and left out."] if self._lost else []

    def _add(self, out: Any, stream: Any) -> Any:
        if _copies(self._container, stream):
            track = out.add_stream_from_template(stream)
            if _codec(stream) == "aac" and not stream.codec_context.extradata:
                self._framed.add(stream.index)
        else:
            encoder = next((name for name in _AUDIO_ENCODERS if holds(self._container, name)), None)
            if encoder is None or stream.codec_context is None:
                raise InputError(
                    f"{self._path}: this kind of file cannot hold the source's sound ({_codec(stream)}); write .mov or "
                    ".mkv, or leave the sound out with --audio drop"
                )
            source, rates = stream.codec_context, av.Codec(encoder, "w").audio_rates or ()
            track = out.add_stream(encoder, rate=source.sample_rate if source.sample_rate in rates else 48_000)
            number = source.layout.nb_channels
            plain = {1: "mono", 2: "stereo"}.get(number)  # a file may state their number alone
            track.codec_context.layout = plain or source.layout
            track.codec_context.bit_rate = _BIT_RATE * number
            kind = f"{self._container} holds no {_codec(stream)}"
            self._recoded[stream.index] = f"The sound is recoded to {_AUDIO_ENCODERS[encoder]}: {kind}."
        if stream.language:
            track.metadata["language"] = stream.language
        track.disposition = stream.disposition & av.stream.Disposition.default
        return track

    def read(self, shift: Fraction, window: tuple[Fraction, Fraction] | None) -> Iterator[Timed]:
        """Packets less `shift` seconds; of a `window` in seconds those in it, whole."""
        last: dict[int, int] = {}
        errors = 0
        while self._streams and errors <= MAX_ERRORS:
            try:
                for packet in self._file.demux(self._streams):
                    errors = 0
                    if packet.size and _place(packet, shift, window, last):
                        index = packet.stream_index
                        yield from self._recode(index, packet) if index in self._recoded else self._copied(packet)
                break
            except (av.FFmpegError, OSError):
                errors += 1
        self._lost += errors
        for index in self._recoded:
            yield from self._recode(index, None)
            yield from self._encoded(index, [None])

    def _copied(self, packet: Any) -> Iterator[Timed]:
        if packet.stream_index in self._framed and bytes(packet)[:1] != b"\xff":
            self._lost += 1
            return
        packet.stream = self._tracks[packet.stream_index]
        yield float(packet.dts * packet.time_base), packet

    def _recode(self, index: int, packet: Any) -> Iterator[Timed]:
        try:
            frames = list(self._file.streams[index].codec_context.decode(packet))
        except (av.FFmpegError, ValueError):
            self._lost += 1
            return
        for frame in frames:  # of several in one packet the first alone has a time
            if frame.pts is None:
                frame.pts = round(self._heard[index] / frame.time_base)
            self._heard[index] = frame.pts * frame.time_base + Fraction(frame.samples, frame.sample_rate)
        yield from self._encoded(index, frames)

    def _encoded(self, index: int, frames: list[Any]) -> Iterator[Timed]:
        for frame in frames:
            for packet in self._tracks[index].encode(frame):
                yield float(packet.dts * packet.time_base), packet

    def mux(self, out: Any, packet: Any) -> None:
        """Write a packet of sound; one that is damaged is left out."""
        try:
            out.mux(packet)
        except av.InvalidDataError:  # the frame of a packet of a broadcast is damaged
            self._lost += 1

    def close(self) -> None:
        self._file.close()


def _place(packet: Any, shift: Fraction, window: tuple[Fraction, Fraction] | None, last: dict[int, int]) -> bool:
    """Give a packet its times in the result, rising in each stream; False where it lies outside of the window."""
    base, index = packet.time_base, packet.stream_index
    ticks, pts = round(shift / base), packet.pts if packet.pts is not None else packet.dts
    if pts is None:
        pts = last.get(index, 0)
    elif window is not None:
        until = (pts + (packet.duration or 0)) * base
        if until <= window[0] or pts * base >= window[1]:
            return False
    dts = (packet.dts if packet.dts is not None else pts) - ticks
    if index in last:
        dts = max(dts, last[index] + 1)
    last[index] = dts
    packet.pts, packet.dts = max(pts - ticks, dts), dts
    return True


def _codec(stream: Any) -> str:
    return "unknown" if stream.codec_context is None else str(stream.codec_context.name)


def _copies(container: str, stream: Any) -> bool:
    """Whether a container holds the sound of a stream as it is."""
    with closing(av.open(f"file:{os.devnull}", "w", format=container)) as trial, suppress(av.FFmpegError, ValueError):
        trial.add_stream_from_template(stream)
        trial.start_encoding()
        return True
    return False
