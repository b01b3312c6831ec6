"""V8 and V11: NVSHMEM on the GPU beside its proxy, and the page that says so."""

import re

import pytest
from support_run import ROOT, SCENARIOS, run

TEXT = (ROOT / "docs" / "validation-v8-v11.md").read_text()
V11, V8_SIGN, V8_SWEEP = (
    SCENARIOS / f"{name}.toml" for name in ("v11-one-message", "v8-producers", "v8-ctas")
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


def test_v8_sweep_is_what_the_page_says(tmp_path):
    found = run(V8_SWEEP, tmp_path).must_pass()
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (yes|no) \|$", TEXT, re.M)
    model = rates(found, "ibgda")
    assert [row[2] for row in rows] == [f"{rate:.1f}" for rate in model]
    for row, rate in zip(rows, model, strict=True):
        ratio = rate / float(row[1])
        assert row[3] == f"{ratio:.2f}"
        assert (row[4] == "yes") == (0.75 <= ratio <= 1.25)
    assert model == sorted(model)
