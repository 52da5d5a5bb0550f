from .backend import RingConfig as RingConfig
from .report_checkpoint import ReportCheckpoint as ReportCheckpoint
from .report_checkpoint import last_model as last_model
from .trainer import RingTrainer as RingTrainer
