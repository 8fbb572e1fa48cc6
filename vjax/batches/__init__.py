"""`vjax run-batch`: files of requests, OpenAI's batch format."""
