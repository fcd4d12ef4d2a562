"""Karpathy JSON and its relatives -> one manifest of images, captions and splits."""
