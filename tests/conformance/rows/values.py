# SPDX-License-Identifier: Apache-2.0
"""Rows 20 to 26: the types of values in the text form."""

from intarsia.target import AttrSpec, DeviceType, Target, TargetKind, register_kind
from rows import refused, row

register_kind(
    TargetKind(
        "row-values",
        DeviceType.CPU,
        attrs=(
            AttrSpec("flag", "bool"),
            AttrSpec("threads", "int"),
            AttrSpec("list", "array<string>"),
        ),
    )
)

MALFORMED = (
    "---unroll-factor:uint=0", "-option:", "-option:=", "-option:bool", "-option:bool=",
    "-option:invalidtype=xyz", "-option=2", "-option=fred", "-option:bool=2", "-option:int=haha",
    "-option:uint=haha",
)  # fmt: skip


@row(20)
def a_bool_is_read_from_six_words():
    words = {"True": 1, "true": 1, "False": 0, "false": 0, "1": 1, "0": 0}
    for word, expected in words.items():
        target = Target(f"vulkan --supports_float16={word}")
        assert target.attrs["supports_float16"] == expected
        assert Target(f"row-values -flag {word}").attrs["flag"] == expected


@row(21)
def another_word_is_no_bool():
    for word in ("7", "yes", "-1", "''", "t"):
        text = refused(Target, f"row-values -flag={word}")
        assert "flag: expects type bool" in text
        assert "write true or false" in text


@row(22)
def an_int_is_decimal_and_in_range():
    assert Target("opencl -max_num_threads=404").attrs["max_num_threads"] == 404
    for word in ("12abc", "0x10", "1.5", "''", "1_0"):
        assert "threads: expects type int" in refused(Target, f"row-values -threads={word}")
    for number in (2**63, -(2**63) - 1):
        assert "does not fit in 64 bits" in refused(Target, f"row-values -threads={number}")
        items = {"kind": "row-values", "threads": number}
        assert "does not fit in 64 bits" in refused(Target, items)


@row(23)
def an_int_may_be_negative():
    assert Target("row-values -threads=-1").attrs["threads"] == -1


@row(24)
def an_empty_element_is_an_error():
    for word in ("a,,b", ",", "a,", ",a"):
        assert "empty element" in refused(Target, f"row-values -list={word}")
    assert "list[1]: empty element" in refused(Target, "row-values -list=a,,b")


@row(25, "whether LLVM knows an option is found where LLVM is loaded; a target takes its form")
def an_option_of_llvm_is_well_formed():
    for option in MALFORMED:
        assert "cl-opt[0]: " in refused(Target, {"kind": "llvm", "cl-opt": [option]})
    for option in ("-option", "--option", "-option=true", "-option:bool=1", "-option:int=-3",
                   "-option:uint=3", "-option:string=a b"):  # fmt: skip
        assert Target({"kind": "llvm", "cl-opt": [option]}).attrs["cl-opt"] == (option,)


@row(26)
def a_default_is_present():
    assert Target("cuda -arch=sm_80").attrs["max_num_threads"] == 1024
    assert Target({"kind": "cuda", "arch": "sm_80"}).attrs["thread_warp_size"] == 32
