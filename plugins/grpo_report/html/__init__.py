"""Show runs as a page: one file that opens from disk, or served while the run goes on."""
