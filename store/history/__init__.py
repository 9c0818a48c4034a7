"""Looking back: walks over the graph of commits, and what they are asked for."""
