"""The side-cars of results: their schema, reading a folder of them, the report and the exports made from them."""

from __future__ import annotations

from ficgan.records.sidecars import SCHEMA, Folder, Record, read_folder

__all__ = ["SCHEMA", "Folder", "Record", "read_folder"]
