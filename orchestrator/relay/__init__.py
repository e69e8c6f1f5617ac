"""The relay: a program of its own that carries the runs' traffic, and the service's side of it in ``control``."""
