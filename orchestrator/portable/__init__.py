"""What travels to other machines: Python 3.6 syntax, standard library only, relative imports, nothing else of ours."""
