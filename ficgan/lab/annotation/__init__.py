"""Face annotation for the obfuscation study: a detector's boxes, corrected by people whom gold images keep honest.

`detect_set` finds, `write_pages` makes pages for review, `collect` checks and merges what they export, and
`score_annotations` counts errors before and after.

Source: Yang et al. 2022, section 3 and appendix A.
"""

from ficgan.lab.annotation.batches import Key, Rules, read_key
from ficgan.lab.annotation.collect import Collected, collect
from ficgan.lab.annotation.detect import Detected, detect_set
from ficgan.lab.annotation.page import write_pages
from ficgan.lab.annotation.records import Record, Records, read_records, write_records
from ficgan.lab.annotation.score import score_annotations, score_text

__all__ = [
    "Collected",
    "Detected",
    "Key",
    "Record",
    "Records",
    "Rules",
    "collect",
    "detect_set",
    "read_key",
    "read_records",
    "score_annotations",
    "score_text",
    "write_pages",
    "write_records",
]
