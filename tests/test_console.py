import io

import pytest
from rich.table import Table
from rich.text import Text

from ds_tft.console import SafeConsole, without_controls
from ds_tft.forecast.report import print_report

HOSTILE = "a\x1b[31mb\x07\u202ec\udcff\x9b2J"


@pytest.mark.parametrize("terminal", [False, True])
def test_text_of_the_data_is_only_text(terminal):
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=80, force_terminal=terminal, color_system=None, highlight=False)
    table = Table("name")
    table.add_row(HOSTILE)
    console.print(Text(f"series {HOSTILE}"))
    print_report([table], console)
    written = stream.getvalue()
    assert "series a[31mbc2J" in written
    assert not set(written) & set("\x1b\x07\u202e\udcff\x9b")
    written.encode()


def test_lines_tabs_and_letters_of_all_scripts_stay():
    assert without_controls("é 日本\n\t[bold] ~") == "é 日本\n\t[bold] ~"
