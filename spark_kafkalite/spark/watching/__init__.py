"""What an application sees of its queries: lag, warnings, last commits."""
