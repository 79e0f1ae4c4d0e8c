"""Noise: a function of seed, session and position; known values of the generator; uniform."""

import numpy as np
from rollout_cases import make_id

from segue.rollout.noise import noise_key, uniform


def test_numbers_are_those_of_splitmix64():
    # first outputs of splitmix64 seeded with 1234567, from the generator's published test vector
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    keys = np.full(4, 1234567, np.uint64)
    drawn = uniform(keys, np.arange(4))
    assert drawn.tolist() == [(value >> 11) / 2**53 for value in expected]


def test_a_number_depends_on_its_own_key_and_position_only():
    keys = np.array([noise_key(0, make_id(index)) for index in range(50)], np.uint64)
    positions = np.arange(50) * 3
    together = uniform(keys, positions)
    alone = [uniform(keys[i : i + 1], positions[i : i + 1])[0] for i in range(50)]
    assert together.tolist() == alone


def test_every_part_of_the_key_counts():
    keys = {
        noise_key(0, make_id(0)),
        noise_key(1, make_id(0)),
        noise_key(0, make_id(1)),
        noise_key(0, make_id(None)),
        noise_key(0, make_id(0, attempt=1)),
        noise_key(0, make_id(0, task="other")),
    }
    assert len(keys) == 6


def test_numbers_are_uniform():
    drawn = uniform(np.full(100_000, noise_key(3, make_id()), np.uint64), np.arange(100_000))
    assert drawn.min() >= 0.0 and drawn.max() < 1.0
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    # chi-square with 19 degrees of freedom is above 43.8 once in a thousand
    assert float(((counts - 5000.0) ** 2 / 5000.0).sum()) < 43.8
    # neighbours are uncorrelated: |r| is above 4 / sqrt(n) about once in 16,000
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / np.sqrt(1e5)
