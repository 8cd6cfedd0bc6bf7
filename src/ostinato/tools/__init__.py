"""The command line. :mod:`ostinato.tools.cli` declares it; one module a command does the work."""
