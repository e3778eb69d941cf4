"""Faces in a canonical frame: geometry, linear appearance model, and the way onto a photo and back."""
