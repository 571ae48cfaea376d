"""From a name to an object: plugins, the environments that they offer, and the services they need."""
