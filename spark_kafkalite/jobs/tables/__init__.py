"""Delta tables: what readers see of a load, written again and again from the manifests."""
