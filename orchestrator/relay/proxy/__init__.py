"""One run's egress proxy to the hosts on its allow-list."""
