"""Every private name of Keras and tf.data that this package relies on."""

__all__ = [
    "ADAM_MOMENTUM",
    "ADAM_VELOCITY",
    "ADAPTER_SHUFFLES",
    "ADD_FROM_REFERENCE",
    "ADD_VARIABLE",
    "APPLY",
    "APPLY_WEIGHT_DECAY",
    "ARRAY",
    "AVERAGES",
    "BACKEND_APPLY_GRADIENTS",
    "BATCHES_OF_TESTS",
    "BATCHES_OF_TRAINING",
    "BATCH_DATASETS",
    "BUILD",
    "CACHE_DATASET",
    "CACHE_FILE",
    "CHECK_FINITE",
    "CHOOSING_DATASETS",
    "CLASS_WEIGHT",
    "CLIP_GRADIENTS",
    "COLUMN_MEANS",
    "CONSUMER_INDEX",
    "DATA",
    "DDP_MODEL",
    "DIRECTED_DATASET",
    "DRAWING_DATASETS",
    "EPOCH_BATCHES",
    "EPOCH_BATCH_COUNT",
    "EPOCH_DATASET",
    "EPOCH_ITERATOR",
    "EPOCH_PASS",
    "EPOCH_STEPS",
    "FIRST_EPOCH",
    "FUNCTIONS_OF_DATASET",
    "GRADIENT_ACCUMULATOR",
    "GRAPH_IS_MISSING",
    "INITIALIZE_DDP",
    "INITIAL_EPOCH",
    "IN_ORDER",
    "IS_PROFILING",
    "ITEM_BY_ITEM_DATASETS",
    "ITERATIONS",
    "ITERATOR",
    "ITERATOR_RESOURCE",
    "KEEP_AVERAGES",
    "LOAD_VARIABLES",
    "LOCALS",
    "LOSS_CALL",
    "MASK",
    "METRICS_OF_METRIC",
    "METRICS_RESULT",
    "MOMENTS",
    "NAMES_OF_BACK_ENDS",
    "NESTING_DATASETS",
    "NEWEST_KERAS",
    "OLDEST_KERAS",
    "OVERWRITE_DIRECTLY",
    "PARALLEL_INTERLEAVE",
    "PARALLEL_MAP_DATASET",
    "PRIVATE_NAMES",
    "PROFILED_BATCHES",
    "PYTHON_OPS",
    "RANDOM_AGAIN",
    "RANDOM_DATASET",
    "REDUCTION_AXES",
    "RMSPROP_MOMENTUM",
    "ROW_MEANS",
    "SAVE_BACKUP",
    "SAVE_VARIABLES",
    "SELECTOR",
    "SERIALIZED_DATASET",
    "SERIALIZE_TO_TENSORS",
    "SGD_MOMENTUM",
    "SHARD_DATASET",
    "SHARD_PLACE",
    "SHUFFLE_AGAIN",
    "SHUFFLE_AND_REPEAT_DATASET",
    "SHUFFLE_DATASET",
    "SHUFFLE_SEEDS",
    "SOURCE_TENSORS",
    "STATE",
    "STATE_IS_TAKEN_BACK",
    "STEPS_PER_EPOCH",
    "SWAP_AVERAGES",
    "TAKE_AVERAGES",
    "TEST_STEP",
    "TRAINABLE_VARIABLES",
    "TRAIN_FUNCTION",
    "TRAIN_STEP",
    "TRAIN_WRITER",
    "UNBATCH_DATASET",
    "UPDATE",
    "UPDATE_AVERAGES",
    "UPDATE_STEP",
    "USE_WEIGHT_DECAY",
    "VALIDATION_DATA",
    "VALIDATION_FREQ",
    "VARIABLE_INDEX",
]


# Between these our tests have run, with the first and the last of them.
OLDEST_KERAS = "3.7"
NEWEST_KERAS = "3.15"

# The class of what `iter()` of a dataset makes, which has no public name.
ITERATOR = "tf.data.IteratorSpec(...).value_type"

# Where Keras or TensorFlow defines it -> what we call, replace, override or read there.
PRIVATE_NAMES: dict[str, tuple[str, ...]] = {
    # Public, but replaced on the instance: `train_step`, `test_step`,
    # `train_function`, `make_train_function`, `make_test_function`, `apply`, `build`,
    # `check_finite` and `call` must keep their meaning.
    "keras.Model": (
        "_flatten_metrics_in_order",
        "_get_metrics_result_or_logs",
        "_symbolic_build",
        "make_test_function",
        "make_train_function",
        "test_step",
        "train_step",
    ),
    "keras.callbacks.BackupAndRestore": ("_save_model",),
    "keras.callbacks.SwapEMAWeights": ("_tf_finalize_ema_values", "_tf_swap_variables"),
    "keras.callbacks.TensorBoard": ("_train_writer",),
    "keras.layers.BatchNormalization": ("_moments",),
    "keras.layers.Layer": ("_flatten_layers",),
    "keras.optimizers.Optimizer": (
        "_apply_weight_decay",
        "_backend_apply_gradients",
        "_backend_update_step",
        "_clip_gradients",
        "_get_variable_index",
        "_overwrite_model_variables_with_average_value",
        "_overwrite_variables_directly_with_gradients",
        "_untrack_variable",
        "_update_model_variables_moving_average",
        "_use_weight_decay",
        "add_variable",
        "add_variable_from_reference",
        "apply",
        "build",
        "load_own_variables",
        "save_own_variables",
        "update_step",
    ),
    "keras.Variable": ("_serialize_to_tensors",),
    "keras.losses.Loss": ("call",),
    "keras.optimizers.LossScaleOptimizer": ("check_finite",),
    "keras.src.saving.saving_lib": (
        "DiskIOStore",
        "H5IOStore",
        "_save_state",
        "_serialize_model_as_json",
    ),
    "keras.src.trainers.epoch_iterator.EpochIterator": ("_enumerate_iterator",),
    "tensorflow.python.autograph.core.config": ("CONVERSION_RULES", "DoNotConvert"),
    "tensorflow.python.data.ops.batch_op": ("_BatchDataset", "_ParallelBatchDataset"),
    "tensorflow.python.data.ops.dataset_ops": ("_OptionsDataset",),
    "tensorflow.python.data.ops.map_op": ("_MapDataset", "_ParallelMapDataset"),
    "tensorflow.python.data.ops.padded_batch_op": ("_PaddedBatchDataset",),
    "tensorflow.python.data.ops.prefetch_op": ("_PrefetchDataset",),
    "tensorflow.python.data.ops.ragged_batch_op": ("_DenseToRaggedDataset",),
    "tensorflow.python.data.ops.shard_op": ("_ShardDataset",),
    "tensorflow.python.data.ops.shuffle_op": ("_ShuffleDataset",),
    "tensorflow.python.data.ops.skip_op": ("_SkipDataset",),
    "tensorflow.python.data.ops.take_op": ("_TakeDataset",),
    "tensorflow.python.data.ops.unbatch_op": ("_UnbatchDataset",),
    "tensorflow.python.eager.context": ("context",),
    "tensorflow.python.framework.auto_control_deps": (
        "register_acd_resource_resolver",
    ),
    "tensorflow.python.ops.cond_v2": ("_CondGradFuncGraph",),
    "tensorflow.python.ops.control_flow_util": ("GraphOrParentsInXlaContext",),
    "tensorflow.python.ops.control_flow_v2_func_graphs": (
        "ControlFlowFuncGraph",
        "WhileCondFuncGraph",
    ),
    "tensorflow.python.ops.gradients_util": ("_GradientsHelper",),
    "tensorflow.python.ops.resource_variable_ops": ("ResourceVariable",),
    "tensorflow.python.ops.summary_ops_v2": ("_summary_state",),
    "tensorflow.python.ops.while_v2": ("_WhileBodyGradFuncGraph",),
    "tf.Operation": ("_add_control_inputs",),
    "tf.OptionalSpec": ("_to_components",),
    "tf.__internal__": ("EagerTensor",),
    "tf.data.Dataset": ("_inputs",),
    "tf.data.IteratorSpec": ("_from_components", "value_type"),
    ITERATOR: (
        "_create_iterator",
        "_next_internal",
        "_type_spec",
        "get_next_as_optional",
    ),
    "tf.data.experimental.service.DispatchServer": ("_stop",),
    "tf.data.experimental.service.WorkerServer": ("_address", "_stop"),
}

# The same, of what training on Keras's other back ends needs.
_NAMES_OF_ALL: dict[str, tuple[str, ...]] = {
    "keras.Model": (
        "_flatten_layers",
        "_get_metrics_result_or_logs",
        "make_train_function",
    ),
    "keras.optimizers.Optimizer": ("_backend_apply_gradients", "_clip_gradients"),
    "keras.src.trainers.epoch_iterator.EpochIterator": ("_enumerate_iterator",),
}
NAMES_OF_BACK_ENDS: dict[str, dict[str, tuple[str, ...]]] = {
    "torch": _NAMES_OF_ALL,
    "jax": _NAMES_OF_ALL
    | {
        "keras.Model": (
            *_NAMES_OF_ALL["keras.Model"],
            "_symbolic_build",
            "jax_state_sync",
        ),
        "keras.src.trainers.epoch_iterator.EpochIterator": (
            "_enumerate_iterator",
            "_get_iterator",
        ),
    },
}

# Local variables of `fit` and of `evaluate`, which we read off the stack.
DATA = "x"
EPOCH_ITERATOR = "epoch_iterator"
FIRST_EPOCH = "initial_epoch"
STEPS_PER_EPOCH = "steps_per_epoch"
VALIDATION_DATA = "validation_data"
VALIDATION_FREQ = "validation_freq"
CLASS_WEIGHT = "class_weight"
LOCALS: dict[str, tuple[str, ...]] = {
    "fit": (
        "self",
        DATA,
        EPOCH_ITERATOR,
        FIRST_EPOCH,
        STEPS_PER_EPOCH,
        VALIDATION_DATA,
        CLASS_WEIGHT,
        VALIDATION_FREQ,
    ),
    "evaluate": ("self", DATA, EPOCH_ITERATOR),
}

# Attributes that exist only on instances.
BATCHES_OF_TRAINING = "_global_train_batch"
BATCHES_OF_TESTS = "_global_test_batch"
GRAPH_IS_MISSING = "_should_write_train_graph"
PROFILED_BATCHES = ("_start_batch", "_stop_batch")
IS_PROFILING = "_is_tracing"
ITERATOR_RESOURCE = "_iterator_resource"
TRAIN_FUNCTION = "train_function"
# Which the train function refers to, where it is not itself a `tf.function`.
TRACED_IN_TRAIN_FUNCTION = "multi_step_on_iterator"
INITIAL_EPOCH = "_initial_epoch"
# Of JAX: a variable's value, and that of a model's variables while `fit` has taken it.
ARRAY = "_value"
STATE = "_jax_state"
STATE_IS_TAKEN_BACK = "_jax_state_synced"
ITERATIONS = "_iterations"
# Of what Keras iterates over an epoch's steps with.
EPOCH_BATCHES = "_get_iterator"
EPOCH_STEPS = "_enumerate_iterator"
EPOCH_DATASET = "_distributed_dataset"
EPOCH_BATCH_COUNT = "_num_batches"
EPOCH_PASS = "_current_iterator"
SHUFFLE_SEEDS = ("_seed", "_seed2")
# Datasets of some of another one's items.
DRAWING_DATASETS = ("_SkipDataset", "_TakeDataset")
SHUFFLE_AGAIN = "_reshuffle_each_iteration"
TRAINABLE_VARIABLES = "_trainable_variables"
REDUCTION_AXES = "_reduction_axes"
METRICS_OF_METRIC = "_metrics"
SGD_MOMENTUM = "momentums"
ADAM_MOMENTUM = "_momentums"
ADAM_VELOCITY = "_velocities"
RMSPROP_MOMENTUM = "_momentums"
GRADIENT_ACCUMULATOR = "gradient_accumulator"  # In a variable's name.
AVERAGES = "_model_variables_moving_average"
ROW_MEANS = "_r"
COLUMN_MEANS = "_c"

CLIP_GRADIENTS = "_clip_gradients"
BACKEND_APPLY_GRADIENTS = "_backend_apply_gradients"
APPLY = "apply"
APPLY_WEIGHT_DECAY = "_apply_weight_decay"
UPDATE = "_backend_update_step"
UPDATE_STEP = "update_step"
USE_WEIGHT_DECAY = "_use_weight_decay"
VARIABLE_INDEX = "_get_variable_index"
UPDATE_AVERAGES = "_update_model_variables_moving_average"
TAKE_AVERAGES = "_overwrite_model_variables_with_average_value"
BUILD = "build"
ADD_VARIABLE = "add_variable"
ADD_FROM_REFERENCE = "add_variable_from_reference"
SWAP_AVERAGES = "_tf_swap_variables"
KEEP_AVERAGES = "_tf_finalize_ema_values"
SAVE_BACKUP = "_save_model"
SAVE_VARIABLES = "save_own_variables"
SERIALIZE_TO_TENSORS = "_serialize_to_tensors"
LOAD_VARIABLES = "load_own_variables"
OVERWRITE_DIRECTLY = "_overwrite_variables_directly_with_gradients"
LOSS_CALL = "call"
CHECK_FINITE = "check_finite"
TEST_STEP = "test_step"
TRAIN_STEP = "train_step"
TRAIN_WRITER = "_train_writer"
WRITERS = "_writers"
WRITERS_BEFORE = "_prev_summary_state"
METRICS_RESULT = "_get_metrics_result_or_logs"
MOMENTS = "_moments"
MASK = "_keras_mask"
# Of Keras 3.16 and newer.
INITIALIZE_DDP = "_initialize_ddp"
DDP_MODEL = "ddp_model"

SHUFFLE_DATASET = "_ShuffleDataset"
SHUFFLE_AND_REPEAT_DATASET = "_ShuffleAndRepeatDataset"
# Of datasets that take items of several, in the order of numbers that one has.
DIRECTED_DATASET = "_DirectedInterleaveDataset"
SELECTOR = "_selector_input"
RANDOM_DATASET = "_RandomDataset"
RANDOM_AGAIN = "_rerandomize"
# Which leave some items out, as a function says.
CHOOSING_DATASETS = frozenset({"_FilterDataset", "_TakeWhileDataset"})
BATCH_DATASETS = frozenset(
    {
        "_BatchDataset",
        "_MapAndBatchDataset",
        "_PaddedBatchDataset",
        "_ParallelBatchDataset",
        "_DenseToRaggedDataset",
        "_DenseToSparseBatchDataset",
    }
)
UNBATCH_DATASET = "_UnbatchDataset"
# Of what Keras makes of arrays, and of a `PyDataset`: `fit`'s argument `shuffle`.
ADAPTER_SHUFFLES = ("_shuffle", "shuffle")
CACHE_DATASET = "CacheDataset"
CACHE_FILE = "_filename"
# Of one of a tf.data service.
CONSUMER_INDEX = "_consumer_index"
SHARD_DATASET = "_ShardDataset"
SHARD_PLACE = ("_num_shards", "_index")
# Of a dataset that has its items, or names of files, from the program.
SOURCE_TENSORS = ("_tensors", "_filenames")
PYTHON_OPS = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
PARALLEL_MAP_DATASET = "_ParallelMapDataset"
ITEM_BY_ITEM_DATASETS = frozenset(
    {"_MapDataset", "_OptionsDataset", PARALLEL_MAP_DATASET, "_PrefetchDataset"}
)
# Of a parallel map or batch: "default", "true" or "false".
IN_ORDER = "_deterministic"
# Whose items come of datasets that a function makes.
PARALLEL_INTERLEAVE = "_ParallelInterleaveDataset"
NESTING_DATASETS = frozenset(
    {"_FlatMapDataset", "_InterleaveDataset", PARALLEL_INTERLEAVE}
)
FUNCTIONS_OF_DATASET = "_functions"
SERIALIZED_DATASET = "_as_serialized_graph"
