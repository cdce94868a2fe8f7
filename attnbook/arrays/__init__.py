"""The basis of the package: arrays of any library, checks of arguments, and moving arrays."""
