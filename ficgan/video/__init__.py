"""Moving pictures: reading and writing, tracks without gaps, redaction, projects to review."""
