"""What may go and what must stay, and what gc, repack and fsck move and remove it with."""
