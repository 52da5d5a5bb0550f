"""A gradient tape with the methods that Horovod's has besides."""

from typing import Any

import tensorflow as tf

import ring_keras as ring

__all__ = ["GradientTape"]

Pairs = list[tuple[Any, Any]]


class GradientTape(ring.DistributedGradientTape):
    """See `ring_keras.DistributedGradientTape`."""

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The reduced gradients.

        Args:
            target: As for `tf.GradientTape.gradient`.
            sources: The same.
            output_gradients: The same.
            use_generic_names: Ignored: gradients are matched by their order.
            **kwargs: Passed on.
        """
        return super().gradient(target, sources, output_gradients, **kwargs)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[Pairs, Pairs]:
        """Pairs of source and gradient, of those that stay here and of the others."""
        gradients = self.gradient(target, sources, output_gradients)
        local: Pairs = []
        shared: Pairs = []
        flat = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True)
        for source, gradient in flat:
            pairs = local if self._options.is_local(source) else shared
            pairs.append((source, gradient))
        return local, shared
