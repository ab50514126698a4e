"""How far the gateway's estimate of prompt tokens is from what real tokenizers count, on real text."""
