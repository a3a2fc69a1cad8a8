"""What plugs into the ports: engines, formats, models, stores."""
