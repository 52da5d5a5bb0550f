"""What `fit` does differently on several ranks: its steps, its data's ends."""
