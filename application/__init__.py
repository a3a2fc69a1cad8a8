"""Services, one verb each, and the ports that they drive."""
