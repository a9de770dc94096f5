"""A compiled function as one HTML page that needs nothing else."""
