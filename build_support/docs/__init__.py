"""How the manual is made of docs/: MkDocs hooks, a theme's changes, plots."""
