# SPDX-License-Identifier: Apache-2.0
"""What the library's folding warns of, while several threads fold."""

import logging
from concurrent.futures import ThreadPoolExecutor

from intarsia.passes.folding import FoldConstantsPass, _library_at_debug

library = logging.getLogger(FoldConstantsPass.__module__)


def fold(word):
    with _library_at_debug():
        library.warning(word)


def test_one_thread_that_has_folded_leaves_the_others_warnings_where_they_belong(caplog):
    caplog.set_level(logging.DEBUG)
    with ThreadPoolExecutor(1) as pool:
        with _library_at_debug():
            pool.submit(fold, "in another thread").result()
            library.warning("after it")
            pool.submit(library.warning, "of somebody else").result()
        library.warning("outside")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "onnxscript: in another thread"),
        ("DEBUG", "onnxscript: after it"),
        ("WARNING", "of somebody else"),
        ("WARNING", "outside"),
    ]


def test_however_often_it_folds_the_librarys_logger_has_one_filter():
    for _ in range(3):
        fold("again")
    names = [getattr(one, "__name__", "") for one in library.filters]
    assert names.count("_demote") == 1
