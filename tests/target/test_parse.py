# SPDX-License-Identifier: Apache-2.0
import pytest

from intarsia.errors import TargetError
from intarsia.target import AttrSpec, DeviceType, Target, TargetKind, register_kind

STRINGS = TargetKind(
    "strings-for-tests",
    DeviceType.CPU,
    attrs=(
        AttrSpec("single", "string"),
        AttrSpec("array", "array<string>"),
        AttrSpec("nested-array", "array<array<string>>"),
        AttrSpec("nested2-array", "array<array<array<string>>>"),
        AttrSpec("number", "int"),
        AttrSpec("flag", "bool"),
        AttrSpec("limits", "map"),
    ),
)
register_kind(STRINGS)


def attr(text: str, name: str) -> object:
    return Target(f"strings-for-tests {text}").attrs[name]


def test_a_kind_alone_has_its_default_keys_and_device():
    target = Target("llvm")
    assert target.kind.name == "llvm"
    assert target.keys == ("cpu",)
    assert target.device_type == DeviceType.CPU
    assert dict(target.attrs) == {}


def test_libs_are_unordered_and_keys_are_not():
    target = Target("cuda -libs=cudnn,cublas,cudnn -model=unknown")
    assert target.attrs["libs"] == ("cublas", "cudnn")
    assert target.attrs["model"] == "unknown"
    assert target.keys == ("cuda", "gpu")
    assert Target("cuda -keys=a,b") != Target("cuda -keys=b,a")


@pytest.mark.parametrize("text", ["cuda --host llvm", "cuda -host llvm", "  cuda   ---host=llvm "])
def test_dashes_and_blanks_do_not_matter(text):
    assert Target(text) == Target("cuda -host=llvm")


def test_blanks_around_json_do_not_matter():
    assert Target('  {"kind": "llvm", "mcpu": "x"} ') == Target("llvm -mcpu=x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("nosuchkind", "target kind 'nosuchkind' is not known"),
        ("vendor/nosuch", "tag 'vendor/nosuch' is not known"),
        ("lvm", "did you mean 'llvm'"),
        ("nvidia/v1000", "did you mean 'nvidia/v100'"),
        ("llvm -mcpuu=x", "did you mean 'mcpu'"),
        ("llvm -nosuch=1", "no attribute 'nosuch'"),
        ("llvm -nosuch=1", "attributes of llvm: accuracy, cl-opt, device"),
        ("llvm -nosuch=1", "llvm -nosuch=1\n       ^^^^^^^"),
        ("llvm -mcpu=a -num-cores=x", "num-cores=x\n                          ^"),
        ("cuda -arch sm_", "cuda -arch sm_\n             ^^^"),
        ("lvm -x", "  lvm -x\n  ^^^\n"),
        ("onnxruntime -graph_optimization=al", "did you mean 'all'"),
        ("opencl:1 2", "device ordinal '2' is a second one"),
        ("opencl 1 -device_id=2", "contradicts -device_id=2"),
        ("cuda -arch=sm_70 -arch=sm_80", "'arch' appears more than once"),
        ("llvm -kind=c", "'kind' appears more than once"),
        ("llvm mcpu=x", "'mcpu=x' at position 5: an option starts with a dash"),
        ("llvm -", "no name"),
        ("llvm --", "no name"),
        ("llvm -=x", "no name"),
        ("llvm -mcpu=", "mcpu: the value is empty"),
        ("llvm -mcpu", "mcpu: the value is missing"),
        ("llvm -mcpu -mtriple=x", "mcpu: the value is missing"),
        ("llvm -mcpu='x", "unbalanced quote ' at position 11"),
        ("llvm -mcpu=x\\", "nothing follows the backslash at position 12"),
        ("llvm -features=x", "features cannot be given"),
        ("opencl:1", "a placed target"),
        ("opencl:1", "\n  opencl:1\n  ^^^^^^^^\n"),
        ("opencl 1 -model=m", "\n  opencl 1 -model=m\n         ^\n"),
        ("llvm, c", "one target is expected, and 'c' follows a comma"),
        ("llvm -mcpu=a, c", "one target is expected, and 'c' follows a comma"),
        ("opencl -device_id=1", "a placed target"),
        ("cuda -arch=80", "arch: '80' is not a CUDA architecture"),
        ("cuda -arch=sm_", "arch: 'sm_'"),
        ("composite --devices='cuda','cuda -arch=80'", r"devices[1].arch: '80'"),
        ("composite --devices=cuda,nosuch", "devices[1]: target kind 'nosuch'"),
        ("cuda -host='llvm -num-cores=x'", "host.num-cores: expects type int"),
        ("composite --devices='cuda -model=\\'x'", "devices: unbalanced quote"),
        ("cuda -host='llvm -mcpu=\\'x'", "host: unbalanced quote"),
        ("cuda -host='llvm -'", "host: '-' at position 5"),
        ("cuda -host=''", "host: the target is an empty text"),
        ("llvm -target_device_type=99", "target_device_type: 99 is not a device type"),
    ],
)
def test_a_malformed_text_is_refused_by_name(text, words):
    with pytest.raises(TargetError) as caught:
        Target(text)
    assert words in str(caught.value)


def test_an_error_repeats_the_whole_input():
    with pytest.raises(TargetError) as caught:
        Target(" composite --devices=cuda,nosuch")
    assert "\n   composite --devices=cuda,nosuch\n" in str(caught.value)
    assert caught.value.target == " composite --devices=cuda,nosuch"
    assert (caught.value.place.start, caught.value.place.length) == (26, 6)
    with pytest.raises(TargetError, match=r"no attribute 'x' in \{'kind': 'cuda', 'x': 1\}"):
        Target({"kind": "cuda", "x": 1})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"'\'string with single quote'", "'string with single quote"),
        (r"'\'\\\'blah\\\'\''", r"'\'blah\''"),
        ("blah", "blah"),
        ("'bl'ah", "'bl'ah"),
        (r"fr\'ed", "fr'ed"),
        ("'  a b '", "a b"),
        (r"'\ a b\ '", " a b "),
        (r"a\, -number=1", "a,"),
        ("''", ""),
        ('"a, b\'c"', "a, b'c"),
        ("a=b", "a=b"),
        ("a,b(c):/d", "a,b(c):/d"),
    ],
)
def test_a_string_is_unquoted_once(text, value):
    assert attr(f"-single={text}", "single") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "-danny,-sammy=1,-kirby='string with space'",
            ("-danny", "-sammy=1", "-kirby='string with space'"),
        ),
        ("'fred, foo, bar',baz", ("fred, foo, bar", "baz")),
        (r"'fr\'ed','f\'oo',' bar,baz '", ("fr'ed", "f'oo", "bar,baz")),
        ("'-a:uint=100,-b:uint=3'", ("-a:uint=100", "-b:uint=3")),
        ("''", ()),
        (r"'\'\''", ("",)),
        (r"'\'a, b\''", ("a, b",)),
    ],
)
def test_an_array_splits_at_commas_outside_quotes(text, value):
    assert attr(f"-array={text}", "array") == value


def test_nested_arrays_lose_one_level_of_quotes_each():
    text = "-nested-array='foo0,foo1,foo2','bar0,bar1,bar2','baz0,baz1'"
    assert [len(part) for part in attr(text, "nested-array")] == [3, 3, 2]
    text = r"-nested2-array='\'foo0,foo1\',\'bar0,bar1\',\'baz0,baz1\'','\'zing0,zing1\',\'fred\''"
    value = attr(text, "nested2-array")
    assert value[0] == (("foo0", "foo1"), ("bar0", "bar1"), ("baz0", "baz1"))
    assert value[1] == (("zing0", "zing1"), ("fred",))


@pytest.mark.parametrize("text", [",", "a,,b", ",a", "a,"])
def test_an_empty_element_is_refused(text):
    with pytest.raises(TargetError, match="empty element"):
        attr(f"-array={text}", "array")


@pytest.mark.parametrize(
    ("text", "value"),
    [("=True", True), ("=true", True), ("=FALSE", False), ("=1", True), ("=0", False), ("", True)],
)
def test_a_bool_reads_as_true_or_false(text, value):
    assert attr(f"-flag{text}", "flag") is value


@pytest.mark.parametrize("text", ["7", "yes", "-1", "''"])
def test_another_word_is_no_bool(text):
    with pytest.raises(TargetError, match="flag: expects type bool"):
        attr(f"-flag={text}", "flag")


def test_an_int_is_decimal_and_may_be_negative():
    assert attr("-number=404", "number") == 404
    assert attr("-number=-1", "number") == -1


@pytest.mark.parametrize("text", ["12abc", "0x10", "1.5", "''", "9223372036854775808", "٣"])
def test_anything_else_is_no_int(text):
    with pytest.raises(TargetError, match="number: "):
        attr(f"-number={text}", "number")


def test_options_of_a_nested_target_have_to_be_quoted():
    target = Target("cuda --host='llvm -mcpu=x'")
    assert target.host == Target("llvm -mcpu=x")
    outer = Target("cuda --host=llvm -mcpu=x")
    assert outer.host == Target("llvm")
    assert outer.attrs["mcpu"] == "x"


def test_composite_devices_keep_their_order_and_attributes():
    plain = Target("composite --host=llvm --devices=cuda,opencl")
    assert plain.attrs["devices"] == (Target("cuda"), Target("opencl"))
    rich = Target("composite --devices='cuda -arch=sm_80','opencl -device=mali'")
    assert rich.attrs["devices"] == (Target("cuda -arch=sm_80"), Target("opencl -device=mali"))


@pytest.mark.parametrize("text", ["composite -target_host=llvm -accelerators=cuda"])
def test_old_names_are_taken_with_a_warning_at_the_users_line(text):
    for _ in range(2):  # again: a target that warns is not remembered
        with pytest.warns(FutureWarning, match="is now") as warned:
            target = Target(text)
        assert [warning.filename for warning in warned] == [__file__] * 2
    assert target == Target("composite -host=llvm -devices=cuda")
    with pytest.warns(FutureWarning, match="'target_host' is deprecated"):
        assert Target("cuda -target_host=llvm") == Target("cuda -host=llvm")
    with pytest.raises(TargetError, match="no attribute 'accelerators'"):
        Target("cuda -accelerators=c")


def test_a_long_text_is_shown_around_the_place():
    with pytest.raises(TargetError) as caught:
        Target(f"llvm -model={'a' * 300} -num-cores=x -mabi={'b' * 300}")
    _, line, carets, _ = str(caught.value).splitlines()
    assert len(line) < 100
    assert line[carets.index("^")] == "x"
    assert line[: carets.index("^")].endswith("-num-cores=")


def test_half_of_a_surrogate_pair_is_refused():
    for spec in (
        "llvm -model=a\ud800",
        {"kind": "llvm", "model": "\ud800"},
        {"kind": "llvm", "tag": ["\ud800"]},
        '{"kind": "llvm", "libs": ["\\ud800"]}',
    ):
        with pytest.raises(TargetError, match="is not Unicode text") as caught:
            Target(spec)
        str(caught.value).encode()
