"""Tables of what was tried, printed at the end."""

from __future__ import annotations

import pytest
from faults_cases import FaultTable

TABLE = pytest.StashKey[FaultTable]()


@pytest.fixture(scope="session")
def fault_table(pytestconfig: pytest.Config) -> FaultTable:
    """Takes note of faults, by kind."""
    pytestconfig.stash[TABLE] = FaultTable()
    return pytestconfig.stash[TABLE]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the table."""
    table = config.stash.get(TABLE, None)
    if table is not None:
        terminalreporter.section("faults")
        for line in table.lines():
            terminalreporter.write_line(line)
