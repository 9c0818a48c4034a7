"""The door to the file system: durable files, locks, large writes, and the ballast for when it is full."""
