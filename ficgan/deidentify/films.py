"""The part of `Deidentifier` that works on moving pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import Methods
from ficgan.face_model import FaceModel
from ficgan.faces import FaceDetector, Recognizer, get_recognizer
from ficgan.faces.pyramid import PyramidDetector
from ficgan.policy import Policy

if TYPE_CHECKING:
    from ficgan.video import People, Project, VideoResult, VideoSettings, VideoTools
    from ficgan.video.live import Stream

__all__ = ["Films"]


class Films:
    """Redaction of files, cameras and streams of frames."""

    _face_model: FaceModel | None
    detector: FaceDetector
    recognizer: Recognizer | None
    policy: Policy
    layer: int
    psi: float | Literal["auto"]
    mode: str
    mask_scale: float
    methods: Methods
    _people: People | None = None
    _teller: Recognizer | None = None

    if TYPE_CHECKING:

        @property
        def face_model(self) -> FaceModel: ...

    def process_video(
        self, source: str | os.PathLike[str], output: str | os.PathLike[str], *,
        settings: VideoSettings | None = None, **options: Any,
    ) -> VideoResult:  # fmt: skip
        """Redact a film, animation, sequence of images, camera or stream.

        Args:
            source: file, pattern such as `frames/%05d.png`, `camera:0`, or address.
            output: file to make.
            settings: stride, pads, linking, fallbacks; None: the usual ones with this Deidentifier's mode.
            options: rules, encode, start, end, project, overwrite, progress(done, total, stage), is_cancelled; see
                `ficgan.video.process_film`.

        Returns:
            What was done; the second look's findings are in `check`.

        Raises:
            InputError: the film cannot be read, or the output not be written.
            Cancelled: `is_cancelled` said so; nothing is left.
        """
        from ficgan.video import process_film, record_live
        from ficgan.video.read import is_live

        settings = settings or self.video_settings()
        tools = self.video_tools(settings, trusted=True)
        if is_live(source):
            return record_live(tools, source, output, settings=settings, **options)
        return process_film(tools, source, output, settings=settings, people=self._linked(settings), **options)

    def analyse_video(
        self, source: str | os.PathLike[str], folder: str | os.PathLike[str], *,
        settings: VideoSettings | None = None, **options: Any,
    ) -> Project:  # fmt: skip
        """Find the faces of a film and write a project to review; see `ficgan.video.analyse_film`."""
        from ficgan.video import analyse_film

        settings = settings or self.video_settings()
        return analyse_film(
            self.video_tools(settings, generate=False),
            source,
            folder,
            settings=settings,
            people=self._linked(settings),
            **options,
        )

    def render_video(
        self, folder: str | os.PathLike[str], source: str | os.PathLike[str], output: str | os.PathLike[str], *,
        settings: VideoSettings | None = None, **options: Any,
    ) -> VideoResult:  # fmt: skip
        """Apply a reviewed project; see `ficgan.video.render_film`."""
        from ficgan.video import render_film

        settings = settings or self.video_settings()
        return render_film(self.video_tools(settings), folder, source, output, settings=settings, **options)

    def stream(
        self, frames: Iterable[NDArray[np.uint8]], fps: float = 25.0, *,
        settings: VideoSettings | None = None, **options: Any,
    ) -> Stream:  # fmt: skip
        """Redact frames as they come, with a bounded look-ahead; see `ficgan.video.live`."""
        from ficgan.video import stream

        settings = settings or self.video_settings()
        return stream(self.video_tools(settings, trusted=True), frames, fps, settings=settings, **options)

    def video_settings(self, **changes: Any) -> VideoSettings:
        """The usual settings with this Deidentifier's mode, and what is changed."""
        from ficgan.video import VideoSettings

        verify = "sampled" if self.policy.verify else "off"
        return VideoSettings(**{"mode": self.mode, "mask_scale": self.mask_scale, "verify": verify, **changes})

    def video_tools(self, settings: VideoSettings, *, generate: bool = True, trusted: bool = False) -> VideoTools:
        """Detector, recogniser and model for a film.

        Args:
            settings: whose mode says whether the model is needed.
            generate: False where faces are only looked for.
            trusted: whether the mode comes from the caller; one from a file may not run programs.
        """
        from ficgan.video import VideoTools

        if self._teller is None:
            # People are told apart even where results are not verified.
            self._teller = self.recognizer or get_recognizer("auto")
        model = self.face_model if generate and settings.mode == "ficgan" else self._face_model
        psi = float(self.psi) if self.psi != "auto" else 0.0 if model is None else model.auto_psi(2)
        # A photo is searched at several scales; a film has many looks at the same face.
        detector = self.detector.once() if isinstance(self.detector, PyramidDetector) else self.detector
        methods = self.methods.trusting(settings.mode) if trusted else self.methods
        return VideoTools(detector, self._teller, model, self.policy, self.layer, psi, methods)

    def _linked(self, settings: VideoSettings) -> People | None:
        """People known from this Deidentifier's other films, where they are to be linked."""
        if settings.link != "job":
            return None
        from ficgan.video import People

        if self._people is None:
            recognizer = self.video_tools(settings, generate=False).recognizer
            assert recognizer is not None
            self._people = People.of(recognizer, "job")
        return self._people
