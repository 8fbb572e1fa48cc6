"""What a model wrote, taken apart: its reasoning, its answer, its calls of tools."""
