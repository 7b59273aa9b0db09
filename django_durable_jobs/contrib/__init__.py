"""What a project may add: each part is used only where it is asked for."""
