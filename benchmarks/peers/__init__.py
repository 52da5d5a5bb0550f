"""One file per package: how its ranks are started."""
