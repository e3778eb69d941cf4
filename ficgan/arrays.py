"""Arrays: images as arrays and as tensors, what NumPy lacks, and arrays in files of ficgan.

Files are safetensors with a JSON header. Nothing is pickled.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import cv2
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ficgan.errors import FicganError, InputError, TakenError, reason
from ficgan.files import write_file

if TYPE_CHECKING:
    import torch

Image = NDArray[np.uint8]
_opencv_lock = threading.Lock()
# Weights of red, green and blue in the luma of BT.601.
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
# Least deviation of a blur of a picture made smaller, its pixels; square of what making it small and large again adds.
_FINEST, _SPREAD = 2.0, 0.2


@contextmanager
def quiet_opencv() -> Iterator[None]:
    """OpenCV prints no warnings meanwhile; the level of its messages is one for all threads."""
    with _opencv_lock:
        level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
        try:
            yield
        finally:
            cv2.utils.logging.setLogLevel(level)


def to_tensor(crops: NDArray[np.uint8], device: str) -> torch.Tensor:
    """[B,S,S,3] uint8 RGB → float32 [B,3,S,S] in [−1, 1], channels last, on `device`."""
    import torch

    pixels = torch.from_numpy(crops)
    if device.startswith("cuda"):  # bytes travel, a quarter of floats; from pinned memory beside the GPU's other work
        pixels = pixels.pin_memory().to(device, non_blocking=True)
    x = pixels.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
    return x.contiguous(memory_format=torch.channels_last)


def to_pixels(images: torch.Tensor) -> NDArray[np.uint8]:
    """[B,3,S,S] in [−1, 1], clipped → [B,S,S,3] uint8 RGB."""
    import torch

    scaled = images.float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).contiguous().cpu().numpy()


def blurred(picture: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
    """A picture [h,w] or [h,w,C], blurred: a wide blur of a smaller picture, in a fraction of the time.

    Args:
        sigma: standard deviation, pixels. Of white noise the result is wrong by less than a fiftieth of its deviation.
    """
    height, width = picture.shape[:2]
    times = 2 ** max(int(np.log2(max(sigma / _FINEST, 1))), 0)
    if times > 1:
        small = max(height // times, 1), max(width // times, 1)
        sigma = float(np.sqrt((sigma / times) ** 2 - _SPREAD))  # making it small and large again blurs, too
        reduced = cv2.resize(picture, small[::-1], interpolation=cv2.INTER_AREA)
        reduced = cv2.GaussianBlur(reduced, (0, 0), sigma)
        out = cv2.resize(reduced, (width, height), interpolation=cv2.INTER_LINEAR)
    else:
        out = cv2.GaussianBlur(picture, (0, 0), sigma)
    return np.asarray(out, np.float32)


def carried(image: NDArray[np.float32], weight: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
    """An image [h,w,C] blurred under a weight [h,w], and carried on where that is 0."""
    packed = np.dstack([image * weight[..., None], weight])
    total = blurred(packed, sigma) + np.float32(1e-3) * blurred(packed, 4 * sigma)
    return np.asarray(total[..., :-1] / np.maximum(total[..., -1:], 1e-9), np.float32)


def resize(image: Image, size: int) -> Image:
    """A square image [S,S,3] at size×size: bicubic up, area average down."""
    if image.shape[0] == size:
        return image
    how = cv2.INTER_CUBIC if size > image.shape[0] else cv2.INTER_AREA
    return cast(Image, cv2.resize(image, (size, size), interpolation=how))


def brightest(colours: NDArray[Any]) -> NDArray[Any]:
    """The largest of the three values of each pixel: [...] of [...,3]. NumPy's own reduction takes 40 times as long."""
    return np.maximum(np.maximum(colours[..., 0], colours[..., 1]), colours[..., 2])


def luminance(colours: NDArray[Any]) -> NDArray[np.float32]:
    """Luma of BT.601 of each pixel, in the unit of the colours: float32 [...] of [...,3]."""
    return np.asarray(colours.astype(np.float32, copy=False) @ LUMA)


def grey_of(colours: NDArray[np.floating]) -> NDArray[Any]:
    """The mean of the three values of each pixel, bit for bit as `mean(-1)` has it: [...] of [...,3]."""
    total = colours[..., 0] + colours[..., 1]
    total += colours[..., 2]
    return np.divide(total, colours.dtype.type(3), out=total)


def ridge(x: NDArray[Any], y: NDArray[Any], penalty: float | NDArray[Any]) -> NDArray[Any]:
    """Ridge regression: the map [D,E] from rows x [N,D] to rows y [N,E]; `penalty` of its squares, one or [D]."""
    square = x.T @ x
    square[np.diag_indices(len(square))] += penalty
    return np.linalg.solve(square, x.T @ y)


def blocks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that together are 0 … count − 1."""
    return (slice(begin, min(begin + size, count)) for begin in range(0, count, size))


def windows(values: NDArray[Any], reach: int) -> NDArray[Any]:
    """The 2·reach + 1 values around each of [N], the ends repeated: a view [N, 2·reach + 1]."""
    return np.lib.stride_tricks.sliding_window_view(np.pad(values, reach, mode="edge"), 2 * reach + 1)


def assignment(cost: NDArray[np.floating]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns that belong together so that the sum of their costs is least; rows ascend.

    Args:
        cost: [N,M] of finite numbers; the larger side keeps some without a partner.

    Source: Crouse 2016, On implementing 2D rectangular assignment algorithms: shortest augmenting paths.
    """
    if cost.shape[0] > cost.shape[1]:
        columns, rows = assignment(cost.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    count, width = cost.shape
    row_price, column_price, owner = np.zeros(count), np.zeros(width), np.full(width, -1, np.intp)
    for start in range(count):
        least, before = np.full(width, np.inf), np.full(width, -1, np.intp)
        done, at, column, reached = np.zeros(width, bool), start, -1, 0.0
        while at >= 0:  # until a column is reached that belongs to nobody
            path = reached + cost[at] - row_price[at] - column_price
            shorter = ~done & (path < least)
            least[shorter], before[shorter] = path[shorter], column
            column = int(np.where(done, np.inf, least).argmin())
            reached, done[column] = float(least[column]), True
            at = int(owner[column])
        taken = np.flatnonzero(done & (owner >= 0))
        row_price[start] += reached
        row_price[owner[taken]] += reached - least[taken]
        column_price[taken] -= reached - least[taken]
        while column >= 0:  # along the path every row changes to the next column
            previous = int(before[column])
            owner[column] = owner[previous] if previous >= 0 else start
            column = previous
    columns = np.flatnonzero(owner >= 0)
    return np.arange(count), columns[np.argsort(owner[columns])]


# -- files of arrays ---------------------------------------------------------------------------------------------------


def write_arrays(
    path: str | Path, arrays: Mapping[str, Any], header: Mapping[str, Any], *, kind: str, overwrite: bool = True
) -> None:
    """Write arrays and a header as a file of a kind ("bank", …), whole or not at all; the same gives the same bytes.

    What cannot be written is a FicganError, as what cannot be read is.
    """
    metadata = {"format": "ficgan", "kind": kind, "header": json.dumps(header, sort_keys=True)}
    data = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, metadata)
    end = 8 + int.from_bytes(data[:8], "little")
    index = json.loads(data[8:end])
    index["__metadata__"] = dict(sorted(metadata.items()))  # `save` writes them in an order by chance
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        write_file(Path(path), len(text).to_bytes(8, "little") + text + data[end:], overwrite=overwrite)
    except TakenError:
        raise
    except InputError as error:
        raise FicganError(str(error)) from None
    except OSError as error:
        raise FicganError(f"{path}: cannot be written ({reason(error)})") from None


def read_arrays(
    path: str | Path, *, kind: str, framework: Literal["numpy", "pt"] = "numpy"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays by name, or tensors, and the header, of a file of that kind; or a FicganError."""
    found, header = file_header(path)
    if found != kind:
        raise FicganError(f"{path} holds a ficgan {found!r}, not the {kind!r} that is needed here")
    with _opened(path, framework) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 (no dictionary)


def file_header(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Kind ("model", "appearance", "bank", …) and JSON header of a file of ficgan; its arrays stay unread."""
    with _opened(path) as file:
        metadata = file.metadata() or {}
        header = dict(json.loads(metadata.get("header", "{}")))
    if metadata.get("format") != "ficgan":
        raise FicganError(f"{path} was not written by ficgan; give a file of ficgan")
    return metadata.get("kind", ""), header


@contextmanager
def _opened(path: str | Path, framework: str = "numpy") -> Iterator[Any]:
    try:
        with safe_open(str(path), framework=framework) as file:
            yield file
    except OSError as error:
        raise FicganError(f"{path} cannot be read ({reason(error)}); give a file of ficgan") from None
    except (SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise FicganError(f"{path} is damaged or not a safetensors file ({error}); fetch or make it again") from None


@dataclass(frozen=True)
class ModelInfo:
    """What a checkpoint's header says beside its weights: of its crops, its training data and its training."""

    alignment: dict[str, Any]
    data: dict[str, Any]
    training: dict[str, Any]

    @classmethod
    def of(cls, path: str | Path) -> ModelInfo:
        """What the header of a network or of an appearance model says."""
        kind, header = file_header(path)
        if kind not in ("model", "appearance"):
            raise FicganError(f"{path} holds a ficgan {kind or 'file'}, not a model")
        try:
            return cls(dict(header["alignment"]), dict(header["data"]), dict(header["training"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FicganError(f"the header of {path} is damaged ({error}); fetch or make it again") from None
