"""The ground of the package: arrays of any library, what is asked of them, and how they move."""
