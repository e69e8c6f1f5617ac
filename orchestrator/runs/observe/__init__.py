"""Metrics, traces and audit lines of runs."""
