"""From a container's log to numbered events, and from these to whoever follows them."""
