"""Between callers and the engine core: prompts in, text out, in this process or over a socket to another."""
