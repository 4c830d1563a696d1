"""Writers of ops by family, as in `smelt.ir.ops`."""
