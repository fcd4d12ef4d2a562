"""One image -> its regions: boxes, features, scores."""
