"""One run's reverse proxy to the model provider."""
