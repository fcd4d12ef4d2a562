"""Regions and words -> scores: CAMP and its relatives."""
