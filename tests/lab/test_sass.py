"""Instructions, families and hot loops of listings written by hand."""

from __future__ import annotations

import pytest

from rooftop.lab.inspect import sass
from rooftop.lab.inspect.sass import count, matches


@pytest.mark.parametrize(
    ("opcode", "wanted", "fits"),
    [
        ("LDG.E.128.CONSTANT", "LDG", True),
        ("LDG.E.128.CONSTANT", "LDG.E.128", True),
        ("LDG.E.128.CONSTANT", "LDG.128", True),
        ("LDG.E.EF.128", "LDG.E.128", True),
        ("LDG.E.128", "LDG.E.12", False),
        ("LDG.E.128", "LDG.128.E", False),
        ("LDG.E", "LDG.E.128", False),
        ("LDGSTS.E.BYPASS.128", "LDG", False),
        ("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS.128", True),
        ("FFMA2", "FFMA", False),
        ("REDUX.SUM", "RED", False),
        ("HMMA.16816.F32.BF16", "HMMA.16816", True),
    ],
)
def test_matches(opcode: str, wanted: str, fits: bool) -> None:
    assert matches(opcode, wanted) is fits
    assert count({opcode: 3, "EXIT": 1}, f"NONE|{wanted}") == (3 if fits else 0)


def loop_of(*lines: str) -> sass.Loop | None:
    """The hottest loop of a hand-written listing: labels end in a colon, an address is put before the rest."""
    text, address = [], 0
    for line in lines:
        if line.endswith(":"):
            text.append(line)
        else:
            text.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return sass.hottest(*sass.parse(text))


END = (".L_end:", "BRA `(.L_end)", "NOP", "NOP")


def test_loops_inside_one_another() -> None:
    """The wait inside the loop that multiplies belongs to it, and is not the hot one; nor is the loop around both."""
    got = loop_of(
        "MOV R0, RZ", ".outer:", *["FADD R1, R1, R2"] * 9, ".middle:", "HGMMA.64x256x16.F32 R4, R8",
        ".wait:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R1]", "@!P0 BRA `(.wait)", "@P1 BRA `(.middle)",
        "@P2 BRA `(.outer)", "EXIT", *END,
    )
    assert got is not None
    assert (got.depth, got.start, got.end) == (2, 0xA0, 0xD0)
    assert got.counts == {"HGMMA": 1, "SYNCS": 1, "BRA": 2}


def test_code_out_of_line_is_no_loop() -> None:
    """A rare path behind the end that branches back is no loop: the branch's target does not dominate it."""
    back = ("FADD R0, R0, R1", "@P0 BRA `(.rare)", ".back:", *["FFMA R1, R2, R3, R1"] * 4, "EXIT", ".rare:", "MUFU.RCP R2, R3", "BRA `(.back)")
    assert loop_of(*back, *END) is None


def test_a_loop_with_a_rare_path_out_of_line() -> None:
    got = loop_of(
        ".top:", "FFMA R1, R2, R3, R1", "BRA.DIV UR4, `(.rare)", ".back:", "LDG.E R2, [R4]", "@P0 BRA `(.top)", "EXIT",
        ".rare:", "MUFU.RCP R2, R3", "BRA `(.back)", *END,
    )
    assert got is not None
    assert got.counts == {"FFMA": 1, "LDG.32": 1, "MUFU": 1, "BRA": 3}


def test_a_return_is_no_branch_back() -> None:
    """A subroutine's return names the kernel it returns into, which is no jump to the kernel's start."""
    assert loop_of("kernel:", "FFMA R1, R2, R3, R1", "CALL.REL.NOINC `(.sub)", "EXIT", ".sub:", "MUFU.RCP R2, R3", "RET.REL.NODEC R6 `(kernel)", *END) is None


def test_ten_times_as_often_a_level() -> None:
    outer = loop_of(".top:", *["FADD R1, R2, R3"] * 21, ".in:", *["FFMA R1, R2, R3, R1"] * 2, "@P0 BRA `(.in)", "@P1 BRA `(.top)", "EXIT", *END)
    inner = loop_of(".top:", *["FADD R1, R2, R3"] * 19, ".in:", *["FFMA R1, R2, R3, R1"] * 2, "@P0 BRA `(.in)", "@P1 BRA `(.top)", "EXIT", *END)
    assert outer is not None and inner is not None
    assert (outer.depth, outer.counts) == (1, {"FADD": 21, "FFMA": 2, "BRA": 2})
    assert (inner.depth, inner.counts) == (2, {"FFMA": 2, "BRA": 1})


@pytest.mark.parametrize("branch", ["@P0 BRA `(.top)", "BRA P0, `(.top)", "BRA.U UP0, `(.top)", "BRA.U !UP0, `(.top)"])
def test_conditions_of_branches(branch: str) -> None:
    """What follows a conditional branch is reached, so that the second loop is seen."""
    got = loop_of(".top:", "FADD R1, R2, R3", branch, ".next:", "FFMA R1, R2, R3, R1", "FFMA R1, R2, R3, R1", "@P0 BRA `(.next)", "EXIT", *END)
    assert got is not None and got.counts == {"FFMA": 2, "BRA": 1}


@pytest.mark.parametrize("told", [' (*"BRANCH_TARGETS .a,.b"*)', ""])
def test_indirect_branches(told: str) -> None:
    """Both cases of a switch inside a loop belong to it, whether or not the disassembler says where the branch goes."""
    got = loop_of(
        ".top:", f"BRX R2 -0x180{told}", ".a:", "FADD R1, R2, R3", "BRA `(.on)", ".b:", "FFMA R1, R2, R3, R1", ".on:", "@P0 BRA `(.top)", "EXIT", *END
    )
    assert got is not None and got.counts == {"FADD": 1, "FFMA": 1, "BRA": 2}


def test_what_is_not_work_is_left_out() -> None:
    code, _, _ = sass.parse(
        [
            "        /*0000*/                   HFMA2.MMA R21, -RZ, RZ, 0, 0 ;",
            "        /*0010*/              @!PT LDS RZ, [RZ] ;",
            "        /*0020*/               @PT HFMA2 R1, R2, R3, R1 ;",
            "        /*0030*/                   EXIT ;",
            ".L_x_0:",
            "        /*0040*/                   BRA `(.L_x_0);",
            "        /*0050*/                   NOP;",
        ]
    )
    assert [i.opcode for i in code] == ["MOV.HFMA2", "HFMA2", "EXIT"]
