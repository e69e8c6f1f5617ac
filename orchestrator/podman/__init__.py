"""Rootless Podman behind the Runtime contract; ``runtime.PodmanRuntime`` is the way in."""
