"""Recipes of the backends' images: what is pinned, when it has to be rebuilt, and how."""
