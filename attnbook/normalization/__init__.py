"""Chapter `transformer`: the normalisations, which layers and the heads of attention share."""
