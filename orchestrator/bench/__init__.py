"""The conformance bench: what a backend's real image does, as numbered checks.

``scenes`` have runs made, through the service's own interface, against the scripted provider; ``checks`` are pure
functions over what was seen; ``runner`` brings the two together; ``recorder`` and ``shapes`` keep and compare what the
CLI printed; ``seen`` and ``table`` keep and show what it can do.
"""
