"""Training by Keras's `fit` where no graph of TensorFlow's is traced.

`framework.py` says what each back end of Keras has of its own.
"""
