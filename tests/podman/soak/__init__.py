"""A soak: many runs at once, ended in every way that we know of, while what they stand on is killed."""
