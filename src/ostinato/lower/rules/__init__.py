"""Rules: shared ways of lowering regions to loop nests, and the table that devices extend."""
