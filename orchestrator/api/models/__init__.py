"""What requests may say and what answers look like, where routes share it; the rest is beside its handlers.

An answer that is a record of the contract has no model of its own: the record is the model, and the OpenAPI document
takes its members and their docstrings.
"""
