"""What runs in a measured process: training, a library, and clocks. Standard library and torch only."""
