"""The weights that ship with the package."""
