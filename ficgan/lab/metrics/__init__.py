"""Metrics: what an attacker achieved (privacy) and what is left to work with (utility)."""
