"""Tables of docs/ that follow from the code, not from records.

python -m rooftop.lab.report.code_tables docs/formats.md      writes those of a page; of all pages without a name, in some minutes"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rooftop.core import settings, whole_file
from rooftop.lab.exit_codes import Parser, ended
from rooftop.lab.report import attention_page, codec_ratios, format_page
from rooftop.lab.report.documents import replaced

TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/attention.md": {"forward": attention_page.forward, "backward": attention_page.backward},
    "docs/codecs.md": {"ratios": codec_ratios.table},
    "docs/formats.md": {
        "ranges": format_page.ranges, "shared": format_page.shared, "chances": format_page.chances, "codes": format_page.tables
    },
}


def page(file: str, text: str) -> str:
    """The text of a page with its tables as the code has them. Raises ValueError where a marker is missing."""
    for name, make in TABLES[file].items():
        text = replaced(text, name, make())
    return text


def main() -> None:
    parser = Parser(prog="python -m rooftop.lab.report.code_tables", description="Write the tables of docs/ that follow from the code.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(TABLES)}; default: all")
    for file in parser.parse_args().pages or TABLES:
        if file not in TABLES:
            parser.error(f"{file!r} is none of {', '.join(TABLES)}")
        path = settings.CHECKOUT / file
        whole_file.write(path, page(file, path.read_text(encoding="utf-8")))
        print(f"wrote {path}")


if __name__ == "__main__":
    ended(main)
