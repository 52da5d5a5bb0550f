from .elastic_job import run_elastic as run_elastic
from .estimator import KerasEstimator as KerasEstimator
from .job import RankFailedError as RankFailedError
from .job import run as run
from .model import KerasModel as KerasModel
from .store import Store as Store
