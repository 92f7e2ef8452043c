# SPDX-License-Identifier: Apache-2.0
"""The HTML report: one file that opens anywhere, with a picture of the graph where it was built."""

from intarsia.report.page.page import PageContent, write_page

__all__ = ["PageContent", "write_page"]
