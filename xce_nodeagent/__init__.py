"""The node agent of the XCE batch scheduler."""
