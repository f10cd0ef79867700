"""Time from the start of the process to the first token. Runs while no other test does."""

import time

from conftest import DEMO


def test_first_token_within_three_tenths_of_a_second(perigee):
  times = []
  for _ in range(20):  # the best of several: other machines may share the host
    start = time.monotonic()
    perigee.run("generate", DEMO, "--prompt", "hello", "--max-tokens", 1)
    times.append(time.monotonic() - start)
    if min(times) < 0.15:
      break
  assert min(times) < 0.3, times
