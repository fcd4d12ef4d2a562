"""Region features in the layouts that other projects published."""
