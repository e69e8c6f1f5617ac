"""podmentor.yaml: frozen, strict models, and how they are loaded.  Only here is the environment read."""
