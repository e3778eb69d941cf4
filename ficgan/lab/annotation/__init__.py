"""Face annotation for the obfuscation study: a detector's boxes, corrected by people whom gold images keep honest.

`boxes.detect_set` finds faces, `make.write_pages` makes pages for review, `collect.collect` checks and merges what they
export, and `collect.score_annotations` counts errors before and after.

Source: Yang et al. 2022, section 3 and appendix A.
"""
