"""From text to a checked RunConfig: settings, overrides, and where models are kept."""
