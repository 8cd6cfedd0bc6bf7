"""Parts of a backend that are not one device's alone."""
