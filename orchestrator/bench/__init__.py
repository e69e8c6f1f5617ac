"""The conformance bench: what a backend's real image does, as numbered checks.

``scenes`` have runs made, through the service's own interface, against the scripted provider; ``checks`` are pure
functions over what was observed; ``runner`` brings the two together; ``recorder`` and ``output_diff`` keep and
compare what the CLI printed; ``seen`` and ``table`` keep and show what it can do.
"""
