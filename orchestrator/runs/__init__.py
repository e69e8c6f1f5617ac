"""Runs: state machine, journal, pump, queue and the supervisor that drives them."""
