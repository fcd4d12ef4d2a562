"""Manifest and extractor -> shards, tokens and batches."""
