"""Chapter `single_head`: the softmax, attention with its gradient, and the learned head."""
