"""The database of runs, subagents and sandboxes."""
