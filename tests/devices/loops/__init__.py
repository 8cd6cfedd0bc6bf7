"""A device that interprets loop nests with NumPy: the example of the page "Add a device"."""
