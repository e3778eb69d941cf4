"""`ficgan ui`: review and redact photos and films in the browser, on this machine alone."""
