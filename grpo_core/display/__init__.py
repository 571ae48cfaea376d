"""Show the progress of a run: on a console, or in the cell of a notebook."""
