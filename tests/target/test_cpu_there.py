# SPDX-License-Identifier: Apache-2.0
"""An `llvm` that is reached by a runner and names no CPU is for the CPU of that machine."""

import pytest

from intarsia.errors import TargetError
from intarsia.native.native_target import check_here
from intarsia.target import CompilationConfig, Target
from intarsia.target.cpu_there import name_cpu

X86 = "fpu cx16 lahf_lm popcnt ssse3 sse4_1 sse4_2 avx"
V3 = f"{X86} avx2 fma f16c bmi1 bmi2 abm movbe"
PI_4 = "asimd fp evtstrm crc32 cpuid"
PI_5 = f"{PI_4} aes sha1 sha2 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"


def x86(flags):
    return ["processor\t: 0", "vendor_id\t: x", f"flags\t\t: {flags}", ""]


def arm(flags, *parts):
    return [
        line
        for part in parts
        for line in (f"Features\t: {flags}", "CPU implementer\t: 0x41", f"CPU part\t: {part}", "")
    ]


@pytest.mark.parametrize(
    ("machine", "lines", "text"),
    [
        ("x86_64", x86("fpu"), "-mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64"),
        ("x86_64", x86(X86), "-mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v2 -mattr=+avx"),
        (
            "x86_64",
            x86(f"{V3} avx_vnni"),
            "-mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v3 -mattr=+avxvnni",
        ),
        ("aarch64", arm(PI_4, "0xd08"), "-mtriple=aarch64-unknown-linux-gnu -mcpu=cortex-a72"),
        (
            "aarch64",
            arm(PI_5, "0xd05", "0xd0b"),
            "-mtriple=aarch64-unknown-linux-gnu -mcpu=cortex-a76",
        ),
        (
            "aarch64",
            arm(f"{PI_4} asimddp", "0xfff"),
            "-mtriple=aarch64-unknown-linux-gnu -mcpu=generic -mattr=+dotprod",
        ),
        (
            "armv7l",
            arm("half thumb fastmult vfp edsp neon vfpv3 vfpv4", "0xc07"),
            "-mtriple=armv7-unknown-linux-gnueabihf -mcpu=cortex-a7",
        ),
        (
            "riscv64",
            ["processor\t: 0", "isa\t\t: rv64imafdcv_zicsr_zba"],
            "-mtriple=riscv64-unknown-linux-gnu -mattr=+m,+a,+f,+d,+c,+v",
        ),
    ],
)
def test_what_a_system_says_names_its_cpu(machine, lines, text):
    target = Target("llvm").with_attrs(name_cpu(machine, "Linux", lines).attrs)
    assert target == Target(f"llvm {text}")
    check_here(target.with_attrs({"runner": "ssh://board"}))  # code can be made for it


def test_the_machine_of_a_runner_is_asked(by_ssh, ssh_server):
    there, here = (
        CompilationConfig.resolve(f"llvm -runner={text}").targets[0].target
        for text in (ssh_server.text, "here")
    )
    assert there == here.with_attrs({"runner": ssh_server.text})  # the way leads back here


@pytest.mark.parametrize(
    ("runner", "problem"),
    [
        ("qemu-aarch64-static", "does not say which CPU it plays"),
        ("ssh://no-such-host.invalid", "no machine of that name"),
    ],
)
def test_a_machine_that_cannot_be_asked_needs_a_name(runner, problem):
    config = CompilationConfig.resolve(f"llvm -runner={runner}")
    with pytest.raises(TargetError, match=rf"runner: no CPU is named.*{problem}") as caught:
        check_here(config.targets[0].target)
    assert "-mcpu=native" in caught.value.hint
