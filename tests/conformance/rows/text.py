# SPDX-License-Identifier: Apache-2.0
"""Rows 1 to 19: the text form of one target."""

from intarsia.target import AttrSpec, CompilationConfig, DeviceType, Target, TargetKind
from intarsia.target import register_kind as register
from rows import refused, row

register(
    TargetKind(
        "row-strings",
        DeviceType.CPU,
        attrs=(
            AttrSpec("single", "string"),
            AttrSpec("array", "array<string>"),
            AttrSpec("nested-array", "array<array<string>>"),
            AttrSpec("nested2-array", "array<array<array<string>>>"),
        ),
    )
)


def value(option):
    """Return the one attribute that the option sets."""
    (found,) = Target(f"row-strings {option}").attrs.values()
    return found


@row(1)
def a_kind_alone_has_its_keys_and_device():
    target = Target("llvm")
    assert target.kind.name == "llvm"
    assert target.keys == ("cpu",)
    assert target.device_type == DeviceType.CPU == 1


@row(2)
def libs_and_model_are_read():
    target = Target("cuda -libs=cublas,cudnn -model=unknown")
    assert set(target.attrs["libs"]) == {"cublas", "cudnn"}
    assert target.attrs["model"] == "unknown"
    assert set(target.keys) == {"cuda", "gpu"}


@row(3)
def dashes_and_the_equals_sign_do_not_matter():
    spellings = ("cuda --host llvm", "cuda -host llvm", "cuda -host=llvm", "cuda ---host=llvm")
    assert {Target(text) for text in spellings} == {Target("cuda", "llvm")}


@row(4)
def several_blanks_are_one():
    assert Target("cuda   -arch=sm_80").attrs["arch"] == "sm_80"


@row(5)
def an_empty_text_is_one_clear_error():
    assert "the target is an empty text" in refused(Target, "")
    assert "the target is an empty text" in refused(Target, " \t ")
    assert "no target is given" in refused(CompilationConfig.resolve, "")
    assert "no target is given" in refused(CompilationConfig.resolve, "  ")


@row(6)
def blanks_around_any_form_do_not_matter():
    assert Target("  llvm -mcpu=cortex-a72 ") == Target("llvm -mcpu=cortex-a72")
    assert Target('  {"kind": "llvm"} ') == Target("llvm")
    assert Target(" nvidia/jetson-nano ") == Target("nvidia/jetson-nano")


@row(7)
def an_unknown_kind_or_tag_is_named_with_what_is_near():
    assert "target kind 'nosuchkind' is not known" in refused(Target, "nosuchkind")
    assert "tag 'vendor/nosuch' is not known" in refused(Target, "vendor/nosuch")
    assert "did you mean 'llvm'" in refused(Target, "lvm")
    assert "did you mean 'nvidia/jetson-nano'" in refused(Target, "nvidia/jetson-nan")


@row(8)
def an_unknown_option_lists_the_known_ones():
    text = refused(Target, "llvm -nosuch=1")
    assert "no attribute 'nosuch'" in text
    assert all(f" {name}" in text for name in Target("llvm").kind.attrs)
    assert "llvm -nosuch=1\n       ^^^^^^^" in text


@row(9)
def an_option_given_twice_is_an_error():
    assert "'arch' appears more than once" in refused(Target, "cuda -arch=sm_70 -arch=sm_80")
    assert "'kind' appears more than once" in refused(Target, "llvm -kind=c")


@row(10)
def an_option_has_a_dash_and_a_name():
    text = refused(Target, "llvm mcpu=x")
    assert "an option starts with a dash" in text
    assert "write -mcpu=x" in text
    assert "an option starts with a dash" in refused(CompilationConfig.resolve, "llvm mcpu=x")
    assert "no name" in refused(Target, "llvm -")
    assert "no name" in refused(Target, "llvm --")


@row(11)
def an_option_has_neither_an_empty_name_nor_an_empty_value():
    assert "mcpu: the value is empty" in refused(Target, "llvm -mcpu=")
    assert "no name" in refused(Target, "llvm -=x")


@row(12)
def only_a_bool_may_lack_its_value():
    assert "mcpu: the value is missing" in refused(Target, "llvm -mcpu")
    assert "mcpu: the value is missing" in refused(Target, "llvm -mcpu -num-cores=2")
    assert Target("vulkan -supports_float16").attrs["supports_float16"] is True


@row(13)
def an_unbalanced_quote_is_shown():
    text = refused(Target, "llvm -mcpu='x")
    assert "unbalanced quote ' at position 11" in text
    assert "llvm -mcpu='x\n             ^" in text


@row(14)
def a_quoted_value_keeps_its_blanks():
    target = Target("vulkan -device_name='Name of GPU with spaces' -device_type=discrete")
    assert target.attrs["device_name"] == "Name of GPU with spaces"
    assert target.attrs["device_type"] == "discrete"


@row(15)
def quotes_are_removed_once_for_each_level():
    assert value(r"-single='\'string with single quote'") == "'string with single quote"
    assert value(r"-single='\'\\\'blah\\\'\''") == r"'\'blah\''"
    assert value("-array=-danny,-sammy=1,-kirby='string with space'") == (
        "-danny", "-sammy=1", "-kirby='string with space'",
    )  # fmt: skip
    assert value("-array='fred, foo, bar',baz") == ("fred, foo, bar", "baz")
    assert value(r"-array='fr\'ed','f\'oo',' bar,baz '") == ("fr'ed", "f'oo", "bar,baz")
    assert value("-nested-array='foo0,foo1,foo2','bar0,bar1,bar2','baz0,baz1'") == (
        ("foo0", "foo1", "foo2"), ("bar0", "bar1", "bar2"), ("baz0", "baz1"),
    )  # fmt: skip
    deep = r"-nested2-array='\'foo0,foo1\',\'bar0,bar1\',\'baz0,baz1\'','\'zing0,zing1\',\'fred\''"
    assert value(deep) == (
        (("foo0", "foo1"), ("bar0", "bar1"), ("baz0", "baz1")), (("zing0", "zing1"), ("fred",)),
    )  # fmt: skip


@row(15)
def an_option_of_llvm_is_one_element():
    target = Target("llvm -cl-opt='-unroll-threshold:uint=100,-unroll-count:uint=3'")
    assert target.attrs["cl-opt"] == ("-unroll-threshold:uint=100", "-unroll-count:uint=3")


@row(16)
def the_options_of_a_nested_target_are_quoted():
    assert Target("cuda --host='llvm -mcpu=cortex-a72'").host.attrs["mcpu"] == "cortex-a72"
    outer = Target("cuda --host=llvm -mcpu=x")
    assert outer.attrs["mcpu"] == "x"
    assert "mcpu" not in outer.host.attrs


@row(17)
def a_composite_has_a_host_and_ordered_devices():
    target = Target("composite --host=llvm --devices=cuda,opencl")
    assert target.host == Target("llvm")
    assert target.attrs["devices"] == (Target("cuda"), Target("opencl"))


@row(18)
def devices_have_attributes():
    target = Target("composite --devices='cuda -arch=sm_80','opencl -device=mali'")
    assert target.attrs["devices"] == (Target("cuda -arch=sm_80"), Target("opencl -device=mali"))


@row(19)
def an_error_inside_has_a_path():
    text = refused(Target, "composite --devices='cuda -arch=sm_80','cuda -arch=80'")
    assert "devices[1].arch: '80'" in text
    line, carets = text.splitlines()[1:3]
    assert line[carets.index("^") : carets.rindex("^") + 1] == "80"
    assert carets.index("^") > line.index("sm_80")
    inner = {"kind": "composite", "devices": ["cuda -arch=sm_80", {"kind": "cuda", "arch": 80}]}
    assert "devices[1].arch: expects type string" in refused(Target, inner)
    assert "devices[1].host.num-cores: expects type int" in refused(
        Target, {"kind": "composite", "devices": ["c", "c -host='llvm -num-cores=x'"]}
    )
