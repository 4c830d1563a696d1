"""What a program is: values, ops, the op table, text, verification, meaning and rewriting."""
