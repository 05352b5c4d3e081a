"""A picture of a node: where its instances are, what joins them, who has what, what is wrong.

`layout` is pure: an inventory becomes boxes and lines. `svg` and `html` write them.
"""
