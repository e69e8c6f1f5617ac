"""The life of a run: admission, launch, stream, limits, teardown; beside them what is stored and observed of it."""
