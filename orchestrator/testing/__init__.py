"""What an author of an adapter needs to test it; never imported by the service."""
