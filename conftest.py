"""All tests run on eight simulated CPU devices, and compile in little time rather than well, each program once.

`JAX_PLATFORMS` chooses an accelerator instead, and `tests/machine.py` says what is skipped there.

Workers share what they have compiled, and the next run finds it again, in `.pytest_cache`. `tests/sample.py` says which
cases run.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

from tests.quick_xla import QUICK

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # all workers share the memory of an accelerator
# Each of eight devices may wait in several collectives at once: with as many threads as devices, they wait for ever.
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("PJRT_NPROC", "64")
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8 {QUICK} {os.environ.get('XLA_FLAGS', '')}"

import jax
import pytest

from tests.machine import devices, need_cpu
from tests.sample import CASES, MOST, TESTS, parts, tree_seed

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_compilation_cache_include_metadata_in_key", True)  # the names of scopes, which tests look at,
jax.config.update("jax_traceback_in_locations_limit", 0)  # but not the line that each operation comes from
jax.config.update("jax_disable_most_optimizations", True)
if not os.environ["JAX_PLATFORMS"].startswith("cpu"):
    jax.config.update("jax_default_matmul_precision", "highest")  # GPUs and TPUs round the factors of a product


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which cases run, and which sample of them."""
    group = parser.getgroup("cases", "which cases of the tests run; those of what is named run all")
    group.addoption("--sample", action="store_true", help="a sample of the cases, of what is named too")
    group.addoption("--rest", action="store_true", help=f"the other tests, and about {MOST} more cases of each")
    group.addoption("--full", action="store_true", help="all cases")
    group.addoption("--seed", type=int, help="the sample of an earlier run, which printed it")


def pytest_configure(config: pytest.Config) -> None:
    """Works out, in the process that starts the workers, what they all go by."""
    config.addinivalue_line("markers", "rest: takes so long that no sample has it; `--rest` and `--full` run it")
    config.addinivalue_line("markers", "devices(number): takes so many devices; skipped where there are fewer")
    config.addinivalue_line("markers", "cpu(reason): describes what only the CPU does; skipped elsewhere")
    config.addinivalue_line("markers", "always: in each sample, since it fails for changes anywhere")
    options = config.option
    if options.seed is None:
        options.seed = tree_seed()
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or options.keyword or options.markexpr
    options.sample = not options.full and not options.rest and (options.sample or not named)
    if not hasattr(config, "workerinput"):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = _programs(config)
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])


def _programs(config: pytest.Config) -> str:
    """A folder for what is compiled; one for this run alone where pytest is to keep nothing."""
    cache = getattr(config, "cache", None)
    if cache is not None:
        return str(cache.mkdir("programs"))
    folder = tempfile.mkdtemp(prefix="programs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says which cases run."""
    options = config.option
    if not (options.sample or options.rest):
        return None
    sample = f"the first of {TESTS:.0%} of the tests, and {CASES:.0%} of the others"
    what = f"the first of the other tests, and about {MOST} more of each" if options.rest else sample
    return f"cases: {what} (--seed {options.seed}); --full runs all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not asked for."""
    options = config.option
    if not (options.sample or options.rest):
        return
    chosen, others = [], []
    for item, part in zip(items, parts([item.nodeid for item in items], options.seed), strict=True):
        if item.get_closest_marker("always"):
            part = "sample"
        late = part == "rest" or (part == "sample" and bool(item.get_closest_marker("rest")))
        asked = late if options.rest else part == "sample" and not late
        (chosen if asked else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what this machine cannot run."""
    for marker in item.iter_markers("devices"):
        devices(*marker.args)
    for marker in item.iter_markers("cpu"):
        need_cpu(*marker.args)


def pytest_collection_finish() -> None:
    """Looks for garbage seldom, and never in what lives as long as the run."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def usual_depth() -> Iterator[None]:
    """Python's own limit of recursion, which Hypothesis and others raise for the whole process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)
