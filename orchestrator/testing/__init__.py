"""The conformance kit: what an author of an adapter needs to test it, and the bench holds runs to."""
