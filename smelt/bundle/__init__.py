"""The file format of compiled models. It depends on neither the compiler nor the importers."""
