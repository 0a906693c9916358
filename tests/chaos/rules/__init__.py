"""What must hold of every history: a function for each rule, which gives what breaks it."""
