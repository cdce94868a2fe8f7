"""Checks of a property, on any function, module or model."""
