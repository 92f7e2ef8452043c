import pytest
from tests.codegen.emit.test_families import FAMILIES
from tests.codegen.emit.runners import run_nvptx
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family):
    FAMILIES[family](run_nvptx)
