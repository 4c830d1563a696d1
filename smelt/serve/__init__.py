"""The model server: `smelt serve MODEL…`. Needs the extra `serve`; nothing else in the package imports it."""
