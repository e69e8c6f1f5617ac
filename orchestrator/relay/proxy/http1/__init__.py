"""HTTP/1 as the egress proxy reads and writes it.  Pure."""
