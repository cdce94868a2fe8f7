"""Chapter `multi_head`: attention in several heads side by side, and their weights."""
