"""The endpoints of the API: decode a request, call a service, encode the result."""
