"""The intermediate representation: typed graphs, their text form, and the verifier."""
