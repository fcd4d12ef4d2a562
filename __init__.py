"""camp-toolkit: photographs and captions -> a trained, measured text-image matcher."""

__version__ = "0.1.0"
