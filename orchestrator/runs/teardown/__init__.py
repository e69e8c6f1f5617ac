"""The end of a container, and what is taken away with it."""
