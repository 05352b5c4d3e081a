"""A fleet as its operators see it: what is read from the store, as a table, JSON and a picture.

`view` says what is shown, `survey` makes it of what the reader follows; `order`, `table`, `blocks`
and `page` are pure, and know nothing of a store.
"""
