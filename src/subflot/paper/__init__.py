"""The paper's tables and figures, made with the library; only the command line imports it."""
