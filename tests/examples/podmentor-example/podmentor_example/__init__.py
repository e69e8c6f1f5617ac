"""The smallest backend for podmentor."""
