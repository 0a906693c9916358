"""What the controller decides: leaders, placement, changes to topics."""
