from .backend import RingConfig as RingConfig
from .elastic_job import run_elastic as run_elastic
from .report_checkpoint import ReportCheckpoint as ReportCheckpoint
from .report_checkpoint import last_model as last_model
from .trainer import RingTrainer as RingTrainer
