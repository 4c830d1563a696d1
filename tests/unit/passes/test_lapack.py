"""JAX's LAPACK calls on our engines, against the same functions of JAX in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from smelt.errors import SmeltError, UnsupportedError
from smelt.ir.text import parse
from smelt.model import model_of
from smelt.weights import Weights

jax = pytest.importorskip("jax", reason="JAX is the oracle of this test")
jnp = jax.numpy
jsl = pytest.importorskip("jax.scipy.linalg")
export = pytest.importorskip("jax.export")

TYPES = [np.float32, np.float64, np.complex64, np.complex128]
BATCHES: list[tuple[int, ...]] = [(), (3,), (2, 1)]
UNGUARANTEED = [f"lapack_{letter}_ffi" for letter in ("sgeqp3", "dgeqp3", "cgeqp3", "zgeqp3")]
UNGUARANTEED += [f"lapack_{letter}_ffi" for letter in ("sormqr", "dormqr", "cunmqr", "zunmqr")]


@pytest.fixture(autouse=True)
def _double():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def adjoint(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2).conj()


def rebuild_svd(x: Any, full: bool) -> Any:
    u, s, vh = jnp.linalg.svd(x, full_matrices=full)
    k = s.shape[-1]
    return s, (u[..., :k] * s[..., None, :]) @ vh[..., :k, :], adjoint(u) @ u, vh @ adjoint(vh)


def rebuild_eigh(x: Any) -> Any:
    w, v = jnp.linalg.eigh(x)
    return w, (v * w[..., None, :]) @ adjoint(v), adjoint(v) @ v


def rebuild_eig(x: Any) -> Any:
    """The residual is moved to 1, so that it is compared relative to the matrix."""
    w, v = jnp.linalg.eig(x)
    return jnp.sort(w), x @ v - v * w[..., None, :] + 1, jnp.linalg.norm(v, axis=-2)


def left_vectors(x: Any) -> Any:
    w, left, _ = jax.lax.linalg.eig(x)
    return adjoint(left) @ x - w[..., :, None] * adjoint(left) + 1


def rebuild_schur(x: Any) -> Any:
    t, z = jax.lax.linalg.schur(x)
    return z @ t @ adjoint(z), adjoint(z) @ z, jnp.tril(t, -2)


def triangular(x: Any, b: Any, **options: Any) -> Any:
    return jax.lax.linalg.triangular_solve(x, b, **options)


S, P, T, W, B = "square", "positive", "tall", "wide", "right side"
CASES: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "cholesky": (jnp.linalg.cholesky, (P,)),
    "upper_cholesky": (lambda x: jnp.linalg.cholesky(x, upper=True), (P,)),
    "qr": (jnp.linalg.qr, (T,)),
    "complete_qr": (lambda x: jnp.linalg.qr(x, mode="complete"), (T,)),
    "wide_qr": (jnp.linalg.qr, (W,)),
    "pivoted_qr": (lambda x: jsl.qr(x, pivoting=True), (T,)),
    "svd": (lambda x: rebuild_svd(x, True), (T,)),
    "wide_svd": (lambda x: rebuild_svd(x, False), (W,)),
    "singular_values": (lambda x: jnp.linalg.svd(x, compute_uv=False), (W,)),
    "eigh": (rebuild_eigh, (S,)),
    "eig": (rebuild_eig, (S,)),
    "left_eigenvectors": (left_vectors, (S,)),
    "lu": (jsl.lu_factor, (T,)),
    "wide_lu": (jsl.lu_factor, (W,)),
    "inv": (jnp.linalg.inv, (S,)),
    "det": (jnp.linalg.det, (S,)),
    "slogdet": (jnp.linalg.slogdet, (S,)),
    "solve": (jnp.linalg.solve, (S, B)),
    "pinv": (jnp.linalg.pinv, (T,)),
    "matrix_power": (lambda x: jnp.linalg.matrix_power(x, -2), (S,)),
    "triangular": (lambda x, b: triangular(x, b, left_side=True, lower=True, transpose_a=True), (S, B)),
    "triangular_right": (lambda x, b: triangular(x, adjoint(b), unit_diagonal=False, conjugate_a=True), (S, B)),
    "hessenberg": (jax.lax.linalg.hessenberg, (S,)),
    "tridiagonal": (lambda x: jax.lax.linalg.tridiagonal(x, lower=True), (P,)),
    "upper_tridiagonal": (lambda x: jax.lax.linalg.tridiagonal(x, lower=False), (P,)),
    "schur": (rebuild_schur, (S,)),
}


def operands(kinds: tuple[str, ...], dtype: Any, batch: tuple[int, ...], seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)

    def normal(*sizes: int) -> Any:
        x = rng.normal(size=(*batch, *sizes))
        return (x + 1j * rng.normal(size=x.shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)

    square = normal(5, 5) + 4 * np.diag([1, -1, 1, -1, 1]).astype(dtype)  # well-conditioned, with complex pairs
    made = {
        S: square,
        P: square @ np.swapaxes(square, -1, -2).conj() + np.eye(5, dtype=dtype),
        T: normal(6, 4),
        W: normal(3, 5),
        B: normal(5, 2),
    }
    return [made[kind] for kind in kinds]


def exported(function: Callable[..., Any], *args: Any) -> Any:
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in UNGUARANTEED]
    return parse(export.export(jax.jit(function), platforms=["cpu"], disabled_checks=checks)(*args).mlir_module())


def run(engine: str, function: Callable[..., Any], *args: Any) -> list[Any]:
    model = model_of(exported(function, *args), Weights({}), engine=engine)
    names = [port.name for port in model.signature.inputs]
    return list(model.run(dict(zip(names, args, strict=True))).values())


def check(engine: str, function: Callable[..., Any], *args: Any) -> None:
    wide = [x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in args]
    expected = jax.tree.leaves(function(*wide))
    found = run(engine, function, *args)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, map(np.asarray, expected), strict=True):
        assert ours.shape == theirs.shape
        scale = max(1.0, float(np.abs(theirs).max(initial=0)))
        eps = float(np.finfo(args[0].dtype).eps)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=100 * eps * scale)


def pairs() -> list[Any]:
    """Every function with every type; one type of each function belongs to the short run."""
    return [
        pytest.param(name, dtype, id=f"{name}-{dtype.__name__}", marks=[pytest.mark.slow] if (i + j) % 4 else [])
        for i, name in enumerate(CASES)
        for j, dtype in enumerate(TYPES)
    ]


@pytest.mark.parametrize(("name", "dtype"), pairs())
def test_functions_of_jax_on_the_reference(name: str, dtype: Any, seed: int):
    function, kinds = CASES[name]
    batch = BATCHES[(list(CASES).index(name) + TYPES.index(dtype)) % 3]
    check("reference", function, *operands(kinds, dtype, batch, seed))


@pytest.mark.parametrize(
    ("names", "dtype", "batch"),
    [
        (("inv", "cholesky"), np.complex128, ()),
        (("eig",), np.float64, (3,)),
        pytest.param(("lu", "pivoted_qr", "wide_svd", "tridiagonal"), np.float32, (2,), marks=pytest.mark.slow),
        pytest.param(("eigh", "complete_qr"), np.complex64, (2, 1), marks=pytest.mark.slow),
    ],
    ids=lambda each: str(each),
)
def test_functions_of_jax_on_the_native_engine(names: tuple[str, ...], dtype: Any, batch: tuple[int, ...], seed: int):
    inputs = [operands(CASES[name][1], dtype, batch, seed) for name in names]

    def together(*args: Any) -> Any:
        left = list(args)
        return [CASES[name][0](*(left.pop(0) for _ in given)) for name, given in zip(names, inputs, strict=True)]

    check("native", together, *(x for given in inputs for x in given))


def test_a_batch_of_any_size():
    sizes = export.symbolic_shape("b, 3, 3")
    program = exported(lambda x: jnp.linalg.inv(x), jax.ShapeDtypeStruct(sizes, np.float64))
    for engine in ("reference", "native"):
        model = model_of(program, Weights({}), engine=engine)
        for batch in (1, 4):
            x = np.random.default_rng(batch).normal(size=(batch, 3, 3)) + 3 * np.eye(3)
            (found,) = model.run({model.signature.inputs[0].name: x}).values()
            np.testing.assert_allclose(found, np.linalg.inv(x), rtol=1e-12)


def test_pjrt_runs_them_as_xlas_own_calls():
    x = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    (found,) = run("pjrt", jnp.linalg.inv, x)
    np.testing.assert_array_equal(found, np.asarray(jax.jit(jnp.linalg.inv)(x)))


JORDAN = np.diag(np.ones(3), 1) + 2 * np.eye(4)
SPECIAL = {
    "zero": np.zeros((3, 3)),
    "one": np.array([[-2.0]]),
    "empty": np.zeros((0, 0)),
    "empty batch": np.zeros((0, 3, 3)),
    "singular": np.arange(9.0).reshape(3, 3),
    "not a number": np.array([[1, np.nan], [2, 3.0]]),
    "defective": JORDAN,
    "lower defective": JORDAN.T.copy(),
    "permutation": np.eye(4)[[1, 2, 3, 0]],
    "rotation": np.array([[0, 1.0], [-1, 0]]),
    "large": np.array([[1.0, 2, 0], [2, -3, 1], [0, 1, 5]]) * 1e200,
    "small": np.array([[1.0, 2, 0], [2, -3, 1], [0, 1, 5]]) * 1e-200,
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_matrices(name: str):
    x = SPECIAL[name]
    with np.errstate(all="ignore"):
        (s,) = run("reference", lambda x: jnp.linalg.svd(x, compute_uv=False), x)
        w, product = run("reference", rebuild_eigh, x)[:2]
        values, residual = run("reference", rebuild_eig, x)[:2]
    if np.isnan(x).any():
        assert np.isnan(s).all()
        assert np.isnan(w).all()
        assert np.isnan(values).all()
        return
    scale = max(np.abs(x).max(initial=0), 1e-300)
    np.testing.assert_allclose(s / scale, np.linalg.svd(x / scale, compute_uv=False), atol=1e-14)
    symmetric = (x + np.swapaxes(x, -1, -2)) / 2
    np.testing.assert_allclose(w / scale, np.linalg.eigvalsh(symmetric / scale), atol=1e-14)
    np.testing.assert_allclose(product / scale, symmetric / scale, atol=1e-14)
    off = 1 if scale < 1e100 else 0  # beside large numbers the 1 that `rebuild_eig` adds is nothing
    np.testing.assert_allclose((residual - off) / max(scale, 1), np.zeros_like(residual), atol=1e-14)


def test_tridiagonal_systems_with_and_without_exchanges(seed: int):
    rng = np.random.default_rng(seed)
    for diagonal in (4.0, 0.0):
        lower, upper = rng.normal(size=(2, 2, 5))
        main = np.full((2, 5), diagonal) + rng.normal(size=(2, 5)) * 0.1
        check("reference", jax.lax.linalg.tridiagonal_solve, lower, main, upper, rng.normal(size=(2, 5, 2)))


CALL = """func.func @main(%x: tensor<{shape}xf32>) -> (tensor<{shape}xf32>, tensor<{count}xi32>, tensor<i32>) {{
  %0:3 = stablehlo.custom_call @{target}(%x) {{mhlo.backend_config = {{}}}} :
    (tensor<{shape}xf32>) -> (tensor<{shape}xf32>, tensor<{count}xi32>, tensor<i32>)
  return %0#0, %0#1, %0#2 : tensor<{shape}xf32>, tensor<{count}xi32>, tensor<i32>
}}"""


def test_calls_that_do_not_fit_are_refused():
    parse(CALL.format(shape="4x3", count=3, target="lapack_sgetrf_ffi"))
    for shape, count, message in (("4x3", 4, "declared"), ("4", 1, "rank"), ("?x3", 3, "numbers")):
        with pytest.raises(SmeltError, match=message):
            parse(CALL.format(shape=shape, count=count, target="lapack_sgetrf_ffi"))
    with pytest.raises(SmeltError, match="element type"):
        parse(CALL.format(shape="4x3", count=3, target="lapack_dgetrf_ffi"))
    program = parse(CALL.format(shape="4x3", count=3, target="lapack_sggev_ffi"))
    for engine in ("reference", "native"):
        with pytest.raises(SmeltError, match="lapack_sggev_ffi"):
            model_of(program, Weights({}), engine=engine).run({"x": np.ones((4, 3), np.float32)})


@pytest.mark.parametrize(("code", "got"), [("90 : ui8", "Z"), ("0 : ui8", "0"), ("200 : ui8", "200")])
def test_options_that_are_no_letter_of_theirs_are_named(code: str, got: str):
    text = f"""func.func @main(%x: tensor<3x3xf32> {{smelt.name = "x"}}) -> tensor<3x3xf32> {{
  %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%x) {{mhlo.backend_config = {{uplo = {code}}}, api_version = 4 : i32}}
    : (tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<i32>)
  return %0#0 : tensor<3x3xf32>
}}"""
    for engine in ("reference", "native"):
        with pytest.raises(UnsupportedError, match=rf"(?m)lapack_spotrf_ffi: uplo\n +expected L or U\n +got +{got}$"):
            model_of(parse(text), Weights({}), engine=engine).run({"x": np.eye(3, dtype=np.float32)})


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (2, 2), (3, 2), (2, 3), (4, 3)])
def test_singular_values_of_few_columns(sizes: tuple[int, int], seed: int) -> None:
    """Two columns are one rotation, one column is none."""
    x = np.random.default_rng(seed).standard_normal(sizes)
    (s,) = run("reference", lambda x: jnp.linalg.svd(x, compute_uv=False), x)
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), rtol=1e-13, atol=1e-14)
