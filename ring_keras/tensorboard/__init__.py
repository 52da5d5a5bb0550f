"""The page "Ring" of TensorBoard; TensorBoard imports it, nothing else does."""
