"""Products by a library: their matrices, algorithms and memory, on a library in this process."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.product import Product
from ostinato.errors import DeviceError
from tests.devices.cuda_host.backend import CudaHostBackend
from tests.devices.cuda_host.driver import HostDriver
from tests.devices.cuda_host.products import HostMultiplication, HostProducts
from tests.devices.registered import registered


@pytest.fixture
def library(session: ost.Session) -> HostProducts:
    backend = session._backend
    assert isinstance(backend, CudaHostBackend)
    found = backend.gpu.products
    assert isinstance(found, HostProducts)
    return found


def random(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal(shape)
    return made.astype(ost.DType.parse(dtype).numpy if dtype == "bfloat16" else dtype)


def run(session: ost.Session, graph: ost.Graph, arrays: dict[str, np.ndarray], **options: bool):
    stored = ost.CompileOptions(stored_programs=False, **options)
    return session.compile(graph, options=stored).run(arrays)[0]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("out", [False, True])
def test_orders_of_matrices(
    session: ost.Session, library: HostProducts, left: bool, right: bool, out: bool
):
    a, b = random((101, 97)), random((97, 89), seed=1)
    g = ost.Graph("g")
    x = g.input("x", a.T.shape if left else a.shape, "float64")
    y = g.input("y", b.T.shape if right else b.shape, "float64")
    product = g.matmul(
        g.permute_dims(x, (1, 0)) if left else x, g.permute_dims(y, (1, 0)) if right else y
    )
    g.set_outputs({"z": g.permute_dims(product, (1, 0)) if out else product})
    arrays = {"x": a.T.copy() if left else a, "y": b.T.copy() if right else b}
    result = run(session, g, arrays)
    np.testing.assert_allclose(result, (a @ b).T if out else a @ b, rtol=1e-12)
    assert len(library.products) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 65, 67), (3, 67, 71)),
        ((2, 3, 65, 67), (2, 3, 67, 71)),
        ((2, 3, 65, 67), (67, 71)),
        ((3, 65, 67), (1, 67, 71)),
        ((65, 67), (3, 67, 71)),
    ],
)
def test_batches(
    session: ost.Session, library: HostProducts, a: tuple[int, ...], b: tuple[int, ...]
):
    g = ost.Graph("g")
    g.set_outputs({"z": g.matmul(g.input("x", a, "float64"), g.input("y", b, "float64"))})
    x, y = random(a), random(b, seed=1)
    np.testing.assert_allclose(run(session, g, {"x": x, "y": y}), x @ y, rtol=1e-12)
    assert len(library.products) == 1


def test_a_part_of_a_matrix(session: ost.Session, library: HostProducts):
    g = ost.Graph("g")
    x = g.slice(g.input("x", (130, 131), "float64"), (2, 5), (100, 106))
    y = g.slice(g.input("y", (120, 131), "float64"), (7, 1), (108, 98))
    g.set_outputs({"z": g.matmul(x, y)})
    a, b = random((130, 131)), random((120, 131), seed=1)
    found = run(session, g, {"x": a, "y": b})
    np.testing.assert_allclose(found, a[2:100, 5:106] @ b[7:108, 1:98], rtol=1e-12)
    assert len(library.products) == 1
    product = library.products[0]
    assert (product.a.pitch, product.b.pitch) == (131, 131)
    assert (product.a.alignment, product.b.alignment) == (16, 8)


def test_an_operand_that_is_computed(session: ost.Session, library: HostProducts):
    g = ost.Graph("g")
    x = g.input("x", (90, 91), "float64")
    weight = g.param("w", (92, 91), "float64", value=random((92, 91), seed=1))
    turned = g.permute_dims(g.add(weight, weight), (1, 0))
    g.set_outputs({"z": g.matmul(g.add(x, x), turned)})
    a, w = random((90, 91)), random((92, 91), seed=1)
    found = run(session, g, {"x": a})
    np.testing.assert_allclose(found, 2 * a @ (2 * w.T), rtol=1e-12)
    assert len(library.products) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(session: ost.Session, library: HostProducts, dtype: str):
    g = ost.Graph("g")
    x, y = g.input("x", (385, 384), dtype), g.input("y", (384, 388), dtype)
    g.set_outputs({"z": g.matmul(x, y)})
    a, b = random((385, 384), dtype), random((384, 388), dtype, 1)
    found = run(session, g, {"x": a, "y": b}).astype(np.float64)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=0.2)
    (product,) = library.products
    assert (product.dtype, product.result, product.tf32) == (dtype, dtype, False)


def test_bytes(session: ost.Session, library: HostProducts):
    g = ost.Graph("g")
    x = g.input("x", (384, 400), "int8")
    y = g.permute_dims(g.input("y", (416, 400), "int8"), (1, 0))
    g.set_outputs({"z": g.integer_matmul(x, y)})
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-128, 128, shape, np.int8) for shape in ((384, 400), (416, 400)))
    found = run(session, g, {"x": a, "y": b})
    np.testing.assert_array_equal(found, a.astype(np.int32) @ b.astype(np.int32).T)
    assert [product.transposed for product in library.products] == [(True, False)]


def siblings(g: ost.Graph) -> dict[str, np.ndarray]:
    """Three matmuls of one operand, each with an elementwise node behind it."""
    x = g.input("x", (2, 60, 64), "float64")
    for name, width in (("q", 128), ("k", 67), ("v", 96)):
        w = g.param(name, (64, width), "float64", value=random((64, width), seed=width))
        bias = g.param(f"{name}.bias", (width,), "float64", value=random((width,), seed=width + 1))
        g.set_outputs({**g.outputs, name: g.add(g.matmul(x, w), bias)})
    return {"x": random((2, 60, 64))}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("names", ["q", "qkv"])
def test_a_bias_is_part_of_the_product(
    session: ost.Session, library: HostProducts, dtype: str, names: str
):
    g = ost.Graph("g")
    x, data = g.input("x", (2, 130, 384), dtype), random((2, 130, 384), dtype)
    expected = {}
    for i, name in enumerate(names):
        width = (512, 544, 576)[i]
        w, bias = random((384, width), dtype, 2 * i + 1), random((width,), dtype, 2 * i + 2)
        product = g.matmul(x, g.param(name, w.shape, dtype, value=w))
        added = g.param(f"{name}.b", bias.shape, dtype, value=bias)
        expected[name] = data.astype("float32") @ w.astype("float32") + bias.astype("float32")
        g.set_outputs({**g.outputs, name: g.relu(g.add(added, product) if i else product + added)})
    options = ost.CompileOptions(stored_programs=False)
    compiled = session.compile(g, options=options)
    for name, found in zip(names, compiled.run({"x": data}), strict=True):
        truth = np.maximum(expected[name], 0)
        np.testing.assert_allclose(found.astype("float32"), truth, rtol=1e-2, atol=1e-2)
    assert [product.bias for product in library.products] == [True]


@pytest.mark.parametrize("case", ["read", "computed", "long"])
def test_a_bias_apart(session: ost.Session, library: HostProducts, case: str):
    """The product is a result itself, or the vector is no param, or one of rows.

    In the first case it is no product of the library, which the emulator takes long to compute.
    """
    g = ost.Graph("g")
    x, w = g.input("x", (500, 384), "float16"), g.input("w", (384, 500), "float16")
    bias = g.param("b", (500,), "float16", value=random((500,), "float16", 2))
    if case == "computed":
        bias = g.relu(g.input("c", (500,), "float16"))
    if case == "long":
        bias = g.reshape(bias, (500, 1))
    product = g.matmul(x, w)
    total = g.add(product, bias)
    g.set_outputs({"z": total, "y": product} if case == "read" else {"z": total})
    arrays = {"x": random((500, 384), "float16"), "w": random((384, 500), "float16", 1)}
    arrays |= {"c": random((500,), "float16", 3)} if case == "computed" else {}
    compiled = session.compile(g, options=ost.CompileOptions(stored_programs=False))
    assert [product.bias for product in library.products] == [False] * (case != "read")
    if case != "read":
        (found,), (truth,) = compiled.run(arrays), ost.reference.evaluate(g, arrays)
        np.testing.assert_allclose(found, truth.astype("float32"), rtol=2e-2, atol=5e-2)


def test_siblings_are_one_product(session: ost.Session, library: HostProducts):
    g = ost.Graph("g")
    arrays = siblings(g)
    compiled = session.compile(g, options=ost.CompileOptions(stored_programs=False))
    for weight_seed in (0, 7):
        if weight_seed:
            compiled.set_param("k", random((64, 67), seed=7))
        results = compiled.run(arrays)
        for name, width, found in zip("qkv", (128, 67, 96), results, strict=True):
            seed = weight_seed if name == "k" and weight_seed else width
            w, bias = random((64, width), seed=seed), random((width,), seed=width + 1)
            np.testing.assert_allclose(found, arrays["x"] @ w + bias, rtol=1e-11)
    assert [product.d.rows for product in library.products] == [128 + 67 + 96]


def test_siblings_apart(session: ost.Session, library: HostProducts):
    g = ost.Graph("g")
    arrays = siblings(g)
    run(session, g, arrays, product_fusion=False)
    assert [product.d.rows for product in library.products] == [128, 67, 96]


def test_siblings_that_are_results(session: ost.Session, library: HostProducts):
    g = ost.Graph("g")
    x = g.input("x", (120, 128), "float64")
    weights = [random((128, 130), seed=seed) for seed in (1, 2)]
    for name, weight in zip("yz", weights, strict=True):
        w = g.param(f"w{name}", (128, 130), "float64", value=weight)
        g.set_outputs({**g.outputs, name: g.matmul(x, w)})
    a = random((120, 128))
    compiled = session.compile(g, options=ost.CompileOptions(stored_programs=False))
    for found, weight in zip(compiled.run({"x": a}), weights, strict=True):
        np.testing.assert_allclose(found, a @ weight, rtol=1e-12)
    assert len(library.products) == 2


def test_options(session: ost.Session, library: HostProducts, driver: HostDriver):
    g = ost.Graph("g")
    x, y = g.input("x", (300, 301), "float32"), g.input("y", (301, 302), "float32")
    g.set_outputs({"z": g.matmul(x, y)})
    arrays = {"x": random((300, 301), "float32"), "y": random((301, 302), "float32", 1)}
    with_library = run(session, g, arrays, tf32=True)
    assert library.products[-1].tf32
    before = driver.count_of("multiply")
    run(session, g, arrays, time_products=False)
    assert driver.count_of("multiply") == before + 1
    count = len(library.products)
    without = run(session, g, arrays, library_products=False)
    assert len(library.products) == count
    np.testing.assert_allclose(with_library, without, rtol=1e-4, atol=1e-4)


def test_the_fastest_algorithm_is_kept(
    session: ost.Session, library: HostProducts, driver: HostDriver
):
    g = ost.Graph("g")
    x, y = g.input("x", (128, 143), "float64"), g.input("y", (143, 151), "float64")
    g.set_outputs({"z": g.matmul(x, y)})
    arrays = {"x": random((128, 143)), "y": random((143, 151), seed=1)}
    run(session, g, arrays)
    launched = [about for name, about in driver.events if name == "multiply"]
    before = driver.count_of("multiply")
    run(session, g, arrays)
    again = [about for name, about in driver.events if name == "multiply"][before:]
    assert again == launched[-1:]


def test_stored_programs_and_clones(session: ost.Session, library: HostProducts):
    g = ost.Graph("stored")
    w = g.param("w", (143, 157), "float64", value=random((143, 157), seed=1))
    g.set_outputs({"z": g.exp(g.matmul(g.input("x", (128, 143), "float64"), w))})
    x = 0.01 * random((128, 143))
    expected = np.exp(x @ random((143, 157), seed=1))
    for _ in range(2):  # the second one is read from the cache
        compiled = session.compile(g)
        np.testing.assert_allclose(compiled.run({"x": x})[0], expected, rtol=1e-12)
    np.testing.assert_allclose(compiled.clone().run({"x": x})[0], expected, rtol=1e-12)
    assert len(library.products) == 3
    assert len(set(library.products)) == 1
    titles = [kernel.name for kernel in compiled.plan.execute_profiled()]
    assert titles == ["matmul by cuBLASLt", "exp"]
    assert "cuBLASLt: 157x128x143 NN float64" in compiled.plan.kernels[0].source


def test_no_memory_for_timing(session: ost.Session, library: HostProducts, driver: HostDriver):
    g = ost.Graph("g")
    x, y = g.input("x", (128, 127), "float64"), g.input("y", (127, 152), "float64")
    g.set_outputs({"z": g.matmul(x, y)})
    arrays = {"x": random((128, 127)), "y": random((127, 152), seed=1)}
    driver._free = 16 << 20
    found = run(session, g, arrays)
    np.testing.assert_allclose(found, arrays["x"] @ arrays["y"], rtol=1e-12)
    assert driver.count_of("multiply") == 1


def test_explain_names_the_library(session: ost.Session, library: HostProducts):
    g = ost.Graph("g")
    x, y = g.input("x", (128, 143), "float64"), g.input("y", (143, 151), "float64")
    g.set_outputs({"z": g.matmul(x, y)})
    assert "matmul by cuBLASLt" in session.compile(g).explain()


def test_explain_says_that_the_library_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CudaHostBackend, "_products", lambda _: None)
    with registered(cudahost="tests.devices.cuda_host.backend:CudaHostBackend"):
        session = ost.Session("cudahost")
    g = ost.Graph("g")
    x, y = g.input("x", (128, 143), "float64"), g.input("y", (143, 151), "float64")
    g.set_outputs({"z": g.matmul(x, y)})
    arrays = {"x": random((128, 143)), "y": random((143, 151), seed=1)}
    compiled = session.compile(g)
    assert "pip install nvidia-cublas" in compiled.explain()
    np.testing.assert_allclose(compiled.run(arrays)[0], arrays["x"] @ arrays["y"], rtol=1e-12)
    options = ost.CompileOptions(library_products=False)
    assert "nvidia-cublas" not in session.compile(g, options=options).explain()


def test_a_library_without_an_algorithm(session: ost.Session, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(HostMultiplication, "algorithms", lambda *_: [])
    g = ost.Graph("g")
    x, y = g.input("x", (128, 143), "float64"), g.input("y", (143, 151), "float64")
    g.set_outputs({"z": g.matmul(x, y)})
    with pytest.raises(DeviceError, match=r"no algorithm .*library_products=False"):
        session.compile(g, options=ost.CompileOptions(stored_programs=False))


def test_recordings(session: ost.Session, library: HostProducts):
    g = ost.Graph("g")
    x, y = g.input("x", (96, 97), "float64"), g.input("y", (97, 99), "float64")
    g.set_outputs({"z": g.matmul(x, y)})
    compiled = session.compile(g)
    a, b, z = random((96, 97)), random((97, 99), seed=1), np.zeros((96, 99))
    bound = compiled.bind({"x": a, "y": b}, [z])
    session.context.begin_graph_capture()
    bound()
    session.context.end_graph_capture(1)
    for _ in range(3):
        a += 1
        assert session.context.replay_graph(1)
        np.testing.assert_allclose(z, a @ b, rtol=1e-12)


def test_open_sizes_and_few_rows_are_not_for_a_library(session: ost.Session, library: HostProducts):
    g = ost.Graph("g")
    n = ost.Variable("n", 1, 128)
    x, y = g.input("x", (n, 97), "float64"), g.input("y", (97, 99), "float64")
    few = g.input("few", (16, 97), "float64")
    g.set_outputs({"z": g.matmul(x, y), "f": g.matmul(few, y)})
    a, b, f = random((50, 97)), random((97, 99), seed=1), random((16, 97), seed=2)
    z, w = session.compile(g).run({"x": a, "y": b, "few": f})
    np.testing.assert_allclose(z, a @ b, rtol=1e-12)
    np.testing.assert_allclose(w, f @ b, rtol=1e-12)
    assert not library.products


def test_products_of_an_executor():
    with registered(cudahost="tests.devices.cuda_host.backend:CudaHostBackend"):
        executor = ost.GraphExecutor("cudahost")
        a, b = random((128, 129)), random((129, 130), seed=1)
        x, y = executor.buffer(a), executor.buffer(b)
        with executor.begin() as s:
            z = s.matmul(x, y)
        np.testing.assert_allclose(z.copyout(), a @ b, rtol=1e-12)
        driver = executor.context.gpu.driver
        assert driver.count_of("multiply") == 1  # without any for timing


def test_an_entry_is_the_product():
    from ostinato.backends.cuda.product import Matrix

    product = Product(
        "float16",
        "float16",
        Matrix(8, 9, 10, 90, 16),
        Matrix(9, 7, 9, 63, 2),
        Matrix(8, 7, 8, 56, 16),
        (False, False),
        3,
        256,
    )
    plain = tuple(tuple(part) if isinstance(part, tuple) else part for part in product)
    assert Product.of_entry(plain) == product
    assert str(product) == "3 x 8x7x9 NN float16"


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("formats", [("float8_e4m3fn",) * 2, ("float8_e5m2", "float8_e4m3fn")])
def test_floats_of_8_bits(
    session: ost.Session, library: HostProducts, formats: tuple[str, str], rows: bool
):
    a, b = (
        random(s).astype(ost.DType.parse(f).numpy)
        for s, f in zip(((3, 67, 512), (512, 528)), formats, strict=True)
    )
    scales = np.float32(0.5), np.float32(0.25)
    if rows:
        scales = (np.exp(random((3, 67, 1), "float32")), np.exp(random((528,), "float32")))
    g = ost.Graph("g")
    x, s = g.input("x", a.shape, a.dtype), g.input("s", scales[0].shape)
    w = g.param("w", b.shape, b.dtype, value=b)
    g.set_outputs({"y": g.scaled_matmul(x, w, s, scales[1], "float32")})
    found = run(session, g, {"x": a, "s": scales[0]})
    exact = a.astype(np.float64) @ b.astype(np.float64) * scales[0] * scales[1]
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
    (product,) = library.products
    assert product.dtypes == (formats[1], formats[0])
    assert product.transposed == (True, False)
    assert product.scale_counts == ((528, 201) if rows else (1, 1))


def test_floats_of_8_bits_that_the_library_does_not_take(
    session: ost.Session, library: HostProducts
):
    """Two E5M2, a depth or columns that are no multiples of 16, and scales of two kinds."""
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    cases = (
        (e5m2, e5m2, 512, 512, ()), (e4m3, e4m3, 520, 512, ()), (e4m3, e4m3, 512, 520, ()),
        (e4m3, e4m3, 512, 512, (512,)),
    )  # fmt: skip
    for left, right, depth, columns, shape in cases:
        a, b = random((400, depth)), random((depth, columns))
        g = ost.Graph("g")
        x, w = g.input("x", a.shape, left), g.input("w", b.shape, right)
        g.set_outputs({"y": g.scaled_matmul(x, w, 1.0, np.ones(shape, np.float32))})
        options = ost.CompileOptions(stored_programs=False)
        session.compile(g, options=options)
    assert not library.products
