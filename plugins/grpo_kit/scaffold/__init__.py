"""Write the packages of new environments and plugins."""
