"""`ringrun --print-completion`: what shells complete, made of ringrun's options."""
