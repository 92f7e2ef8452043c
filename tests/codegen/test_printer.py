"""The text of kernels, which people read and `fingerprint` hashes."""

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Index, Type
from intarsia.codegen.printer import fingerprint, print_function
from intarsia.extents import symbol

LANES = 4


def dot(name="dot", scale=2.0, note="a dot product of 8"):
    b = Builder(name)
    b.note(note)
    x = b.argument("x", "float32", (2, 8), align=64)
    w = b.argument("w", "float32", (8,), (2,))
    y = b.argument("y", "float32", (2,), is_written=True)
    with b.parallel(2) as row:
        zero = b.constant(0, Type("float32", LANES))

        def step(k, total):
            item = b.load(x, (row, k), LANES)
            return [b.fma(item, b.load(w, k, LANES, stride=2), total)]

        (total,) = b.loop(0, 8, [zero], step, step=LANES)
        result = b.mul(b.reduce("add", total), scale)
        b.store(b.maximum(0, result), y, row)
    return b.finish()


DOT = """\
kernel dot
  # a dot product of 8
  x: const float32[2, 8] align 64
  w: const float32[8] strides [2]
  y: float32[2]
  parallel i0 in 0..2:
    for i1 in 0..8 step 4 with v2: float32x4 = 0.0:
      v3: float32x4 = x[i0, i1]<4>
      v4: float32x4 = w[i1]<4 by 2>
      v5: float32x4 = fma(v3, v4, v2)
      next v5
    v6 = last
    v7: float32 = reduce add(v6)
    v8: float32 = v7 * 2.0
    v9: float32 = max(0.0, v8)
    y[i0] <- v9
"""

ALL = """\
kernel everything
  x: const int32[16]
  y: bool[8]
  local t: float32[4] align 64
  s0: size
  s1: size
  v2: int32x4 = x[0]<3 of 4>
  v3: int32x4 = neg(v2)
  v4: boolx4 = v2 <= v3
  v5: int32x4 = v4 ? v2 : v3
  v6: float32x4 = float32(v5)
  v7: int32x4 = bits int32(v6)
  v8: int32x2 = shuffle(v7, v2, [0, 5])
  v9: int32 = v8.1
  v10: int64 = index s0 + 2
  v11: int64 = index s1 + 1
  v12: int32x4 = splat(v9)
  v13: boolx4 = v12 != v2
  t[0]<4> <- v6
  y[s0]<3 of 4 by 2> <- v13
  prefetch x[v11 - 1]
  for i0 in 0..s0:
    v15: int32 = x[2*i0 + 3*v10]
"""


def test_a_kernel_reads_well():
    assert print_function(dot()) == DOT


def test_every_operation_has_a_text():
    b = Builder("everything")
    x = b.argument("x", "int32", (16,))
    y = b.argument("y", "bool", (8,), is_written=True)
    t = b.local("t", "float32", (4,))
    n = symbol("n")
    a = b.load(x, 0, 4, count=3)
    c = b.unary("neg", a)
    d = b.select(b.compare("le", a, c), a, c)
    e = b.cast(d, "float32")
    f = b.bitcast(e, "int32")
    g = b.extract(b.shuffle(f, a, [0, 5]), 1)
    m = b.index(n + 2)
    k = b.index(n * -3 + 1)
    h = b.compare("ne", b.splat(g, 4), a)
    b.store(e, t, 0)
    b.store(h, y, n, stride=2, count=3)
    b.prefetch(x, Index.of(k) - 1)
    with b.serial(0, n) as i:
        b.load(x, i * 2 + Index.of(m) * 3)
    assert print_function(b.finish()) == ALL


def test_fingerprints_are_of_what_is_computed():
    assert fingerprint(dot()) == fingerprint(dot("other", note="another note"))
    assert fingerprint(dot()) != fingerprint(dot(scale=3.0))
