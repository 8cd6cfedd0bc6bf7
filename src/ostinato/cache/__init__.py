"""Caches of compiled code and of what graphs and files were compiled to and read as.

``fingerprint`` makes keys, ``store`` keeps files, ``objects`` puts a table of this process before
them, ``single_flight`` has each value made once, and ``builds`` makes many of them in parallel.
"""
