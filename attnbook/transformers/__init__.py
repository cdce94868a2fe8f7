"""Chapter `transformer`: encoder and decoder layers, and the whole model."""
