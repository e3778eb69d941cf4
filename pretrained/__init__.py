"""The embedded default model and its identity bank: safetensors files and `manifest.json` (sha256, licence, data, record)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).resolve().parent
