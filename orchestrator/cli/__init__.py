"""The command ``podmentor``: click commands, a client of the HTTP API, and how a run looks in a terminal.

Nothing heavy is imported before a sub-command needs it: ``podmentor --help`` has to be quick.
"""
