"""One file per command: Click options -> a call into the rooms below."""
