"""Runs mpi4py's tests, which are in the folder of the first argument, without those whose names begin with another
argument. Each rank prints how many tests it has run, and the names of those that failed."""
import sys
import unittest

# The tests would also run with arrays of NumPy, if it is installed.
sys.modules["numpy"] = None
from mpi4py import MPI

folder, *without = sys.argv[1:]
sys.path.insert(0, folder)


def cases(suite):
    for test in suite:
        yield from cases(test) if isinstance(test, unittest.TestSuite) else [test]


found = list(cases(unittest.defaultTestLoader.discover(folder, "test_*.py", folder)))
chosen = [test for test in found if not test.id().startswith(tuple(without))]
unknown = [name for name in without if not any(test.id().startswith(name) for test in found)]
world = MPI.COMM_WORLD
with open(f"tests.{world.rank}", "w") as log:
    result = unittest.TextTestRunner(log, verbosity=2).run(unittest.TestSuite(chosen))
bad = [test.id() for test, _ in result.failures + result.errors]
bad += [test.id() for test in result.unexpectedSuccesses] + unknown
# The output of one call of `write` is not mixed with that of other ranks.
line = f"rank {world.rank} of {world.size}: {result.testsRun} tests, bad {bad}\n"
sys.stdout.write(line)
sys.stdout.flush()
sys.exit(bool(bad))
