"""Tests multiply matrices as actors do: the variable is read with the first product of a process."""

import os

from segue.conf.environment import actor_environment

os.environ["MKL_CBWR"] = actor_environment(threads=1)["MKL_CBWR"]
