"""`vjax chat` and `vjax complete`: a model in the terminal, on a server or in this process."""
