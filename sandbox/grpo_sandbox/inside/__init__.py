"""What runs inside a jail: the standard library and these files, whose text is handed to its Python."""
