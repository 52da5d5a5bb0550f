"""`python -m ring_keras.verify train.py`: do N ranks train as one process would?"""
