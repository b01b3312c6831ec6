"""V8 and V11: NVSHMEM on the GPU beside its proxy, and the page that says so."""

import re

import pytest
from support_run import ROOT, SCENARIOS, run

from sim.scenario import load

TEXT = (ROOT / "docs" / "validation-v8-v11.md").read_text()
V11, V8_SIGN, V8_SWEEP, V8_PROXY = (
    SCENARIOS / f"{name}.toml"
    for name in ("v11-one-message", "v8-producers", "v8-ctas", "v8-ctas-proxy")
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("model")]


def p50(found, path):
    (group,) = found.result["paths"][path]["groups"]
    return group["latency_ns"]["p50"]


def rates(found, path):
    return [group["rate_mops"] for group in found.result["paths"][path]["groups"]]


@pytest.fixture(scope="module")
def one_message(tmp_path_factory):
    return run(V11, tmp_path_factory.mktemp("v11")).must_pass()


def test_v11_is_what_the_page_says(one_message, tmp_path):
    internal = run(V11, tmp_path, "gpu.nvshmem_api_ns=0", 'paths=["ibgda"]', "expect=[]")
    found = {
        "`ibgda`": p50(one_message, "ibgda"),
        "`ibgda`, internal path": p50(internal, "ibgda"),
        "`gda_minimal` (inline)": p50(one_message, "gda_minimal"),
        "`ibrc`": p50(one_message, "ibrc"),
    }
    rows = re.findall(r"^\| (`\S+`[^|]*) \| ([\d.-]+) \| ([\d.]+) \| ([\d.-]+) \|", TEXT, re.M)
    assert [row[0] for row in rows] == list(found)
    for name, published, model, ratio in rows:
        assert model == f"{found[name] / 1000:.3f}"
        if published != "-":
            assert ratio == f"{found[name] / 1000 / float(published):.3f}"
    assert f"{p50(one_message, 'ibrc') / p50(one_message, 'ibgda'):.2f} of the time" in TEXT


def test_v11_decomposition_is_what_the_page_says(one_message):
    lines = [[word.strip(" *") for word in row.split("|")[1:-1]] for row in TEXT.splitlines()]
    first = next(n for n, line in enumerate(lines) if line[:1] == ["segment (ns)"])
    paths = [name.strip("`") for name in lines[first][1:]]
    table = {line[0]: line[1:] for line in lines[first + 2 : lines.index([], first)]}
    for number, path in enumerate(paths):
        (group,) = one_message.result["paths"][path]["groups"]
        said = {name: int(row[number]) for name, row in table.items() if row[number] != "-"}
        assert said.pop("sum") == group["latency_ns"]["p50"]
        assert said == {name: value for name, value in group["segments_ns"].items() if value >= 0}


def test_v8_sign_is_what_the_page_says(tmp_path):
    found = run(V8_SIGN, tmp_path).must_pass()
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", TEXT, re.M)
    works = [work.producers for work in found.scenario.workloads]
    both = list(zip(rates(found, "ibgda"), rates(found, "ibrc"), strict=True))
    assert rows == [
        (str(threads), f"{gpu:.2f}", f"{proxy:.2f}", f"{gpu / proxy:.2f}")
        for threads, (gpu, proxy) in zip(works, both, strict=True)
    ]
    # One thread: the proxy; a full warp and more: the GPU.
    assert [gpu > proxy for gpu, proxy in both] == [False, False, True, True]


def test_v8_sign_is_another_with_a_proxy_that_costs_nothing(tmp_path):
    """What the sign comes from, so that the scenario notices."""
    found = run(V8_SIGN, tmp_path, "proxy.service_cold_ns=75")
    assert found.result["verdict"] == "fail"
    assert any("rate_mops (ibrc" in text for text in found.result["failures"])
    assert rates(found, "ibrc")[2] > rates(found, "ibgda")[2]


def table(head):
    """Rows of the table whose first column is called so: CTAs, published, model, ratio, hit."""
    _, _, rest = TEXT.partition(f"| {head} | published M/s |")
    rows = re.findall(
        r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (yes|no) \|$",
        rest.partition("\n\n")[0],
        re.M,
    )
    assert rows
    for _, said, model, ratio, hit in rows:
        quotient = float(model) / float(said)
        assert abs(float(ratio) - quotient) < 0.01, (model, said, ratio)
        assert (hit == "yes") == (0.75 <= quotient <= 1.25)
    return {int(ctas): (float(said), model, ratio, hit) for ctas, said, model, ratio, hit in rows}


def compare(rows, found, path, digits):
    """The page's rows of the CTAs that ran are what came out, and say whether that is a hit."""
    works = [work.qps for work in found.scenario.workloads]
    for ctas, rate in zip(works, rates(found, path), strict=True):
        published, model, ratio, hit = rows[ctas]
        assert (model, ratio) == (f"{rate:.{digits}f}", f"{rate / published:.2f}"), ctas
        assert (hit == "yes") == (0.75 <= rate / published <= 1.25), ctas
    return works


def missed(found):
    """Groups whose bound is a declared miss, by the number of its expectation."""
    return [entry.group for entry in found.scenario.expects if entry.miss]


def test_v8_sweep_is_what_the_page_says_and_each_miss_is_declared(tmp_path):
    found = run(V8_SWEEP, tmp_path).must_pass()
    rows = table("CTAs")
    works = compare(rows, found, "ibgda", 1)
    assert works == [1, 4, 16] and list(rows) == [1, 2, 4, 8, 16, 32, 64]
    # What the page calls a miss is what the scenario declares, which must hold as such to pass.
    assert missed(found) == [n for n, ctas in enumerate(works) if rows[ctas][3] == "no"]
    assert len(found.result["misses"]) == len(missed(found))


def test_v8_proxy_is_what_the_page_says(tmp_path):
    found = run(V8_PROXY, tmp_path).must_pass()
    rows = table("CTAs, proxy")
    assert compare(rows, found, "ibrc", 2) == [1, 4, 16]
    assert [float(model) >= 2.5 for _, model, *_ in rows.values()] == [False] * 2 + [True] * 5
    assert missed(found) == [0]


@pytest.mark.parametrize(("file", "head"), [(V8_SWEEP, "CTAs"), (V8_PROXY, "CTAs, proxy")])
def test_sweep_of_all_is_the_shipped_one_and_more(file, head):
    whole, shipped = load(SCENARIOS / "sweeps" / file.name), load(file)
    rows = table(head)
    assert [work.qps for work in whole.workloads] == list(rows)
    assert set(shipped.workloads) < set(whole.workloads)
    bounds = {entry.within for entry in whole.expects}
    assert {entry.within for entry in shipped.expects} < bounds
    for (published, *_), entry in zip(rows.values(), whole.expects[1:], strict=False):
        assert entry.within == pytest.approx((0.75 * published, 1.25 * published), abs=0.01)
