"""Tasks, the rows of their data, and these as tokens. What cannot be read is a `DataError` of one line."""
