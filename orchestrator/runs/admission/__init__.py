"""When a run may start."""
