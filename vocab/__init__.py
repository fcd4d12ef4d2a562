"""Captions -> tokens -> ids; counts -> vocabulary; word vectors -> matrix."""
