"""What a run may use: resolved from the configuration, measured, and the end of a run that exceeds it."""
