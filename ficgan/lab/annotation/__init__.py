"""Face annotation for the obfuscation study: a detector's boxes, corrected by people (Yang et al. 2022, appendix A)."""
