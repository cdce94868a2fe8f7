"""What several checks have in common."""
