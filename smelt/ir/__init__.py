"""Programs: values, ops, the op table, text, verification, the reference interpreter and rewriting."""
