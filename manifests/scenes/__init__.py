"""A seed -> drawn scenes, their captions and their object boxes."""
