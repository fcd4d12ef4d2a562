"""Ready recipes, one TOML file each."""
