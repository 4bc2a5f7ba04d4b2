"""`python -m batten.bench`: what a call costs raw, through the torch op, and through FastVideo's
layer. Needs torch."""
