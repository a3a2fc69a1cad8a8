"""What operators see: exporters of traces and metrics."""
