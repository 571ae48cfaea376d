"""Load plugins and create the environments that they offer and the services these need."""
