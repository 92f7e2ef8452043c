# SPDX-License-Identifier: Apache-2.0
"""The README as a package index shows it: a link to a file of the sources becomes its text."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)")


class ReadmeHook(MetadataHookInterface):
    """Fills in `readme`."""

    def update(self, metadata):
        """Add the README to the metadata of the project."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = _RELATIVE.sub(r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
