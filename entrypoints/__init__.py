"""How the server is started and reached: settings, container, HTTP, command line."""
