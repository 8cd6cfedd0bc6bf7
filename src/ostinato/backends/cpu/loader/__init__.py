"""Loading objects: sections laid out in memory, symbols resolved, without a linker."""
