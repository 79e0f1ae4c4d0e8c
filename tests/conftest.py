"""How every test runs: products of matrices as actors make them, and properties that are not timed."""

import os

import hypothesis

from segue.conf.environment import actor_environment

# read with the first product of a process
os.environ["MKL_CBWR"] = actor_environment(threads=1)["MKL_CBWR"]
# on a machine that does other work as well an example may take any time
hypothesis.settings.register_profile("segue", deadline=None)
hypothesis.settings.load_profile("segue")
