"""Makes and checks what a release consists of."""
