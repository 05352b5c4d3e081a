"""The node agent of the XCE batch scheduler."""

__version__ = "0.1.0"
