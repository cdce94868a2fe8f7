"""Chapter `transformer`: the layers of encoder and decoder, and the whole model."""
