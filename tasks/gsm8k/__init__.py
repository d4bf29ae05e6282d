"""Grade-school math word problems."""
