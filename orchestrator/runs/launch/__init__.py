"""From an admitted run to its started container, and what that may reach."""
