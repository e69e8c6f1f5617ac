"""The relay's side: the process, its control socket and log, and what keeps others out of its memory."""
