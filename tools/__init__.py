"""What developers run: the demo, the benches, fault injection. Not part of the distribution."""
