"""Program in, Program out: every pass, in the order `pipeline` lists them."""
