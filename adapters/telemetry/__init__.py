"""Exporters of traces and metrics."""
