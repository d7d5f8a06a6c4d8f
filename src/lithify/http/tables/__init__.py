"""Tables over HTTP: their definitions, rows and transactions."""
