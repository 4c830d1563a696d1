"""Our verifier and the official one on the same mutated programs, and our printed text in the official parser."""

from random import Random

import pytest

from smelt.errors import SmeltError
from smelt.ir.text import parse, print_program
from tests.conformance import verifier_parity as parity
from tests.hostile.samples import SAMPLES

pytest.importorskip("jaxlib.mlir")

pytestmark = pytest.mark.xdist_group("verifier_parity")
UNKNOWN_TO_JAXLIB = ("check.", '"smelt.', "stablehlo.collective_reduce", "chlo.dynamic_reshape")
KNOWN = {name: text for name, text in SAMPLES.items() if not any(word in text for word in UNKNOWN_TO_JAXLIB)}


@pytest.fixture(scope="module")
def official():
    with parity.Official() as verifier:
        yield verifier


@pytest.mark.parametrize("name", KNOWN)
def test_samples_are_valid_for_both(official, name):
    assert official.judge(KNOWN[name]).kind == "accepted"
    assert parity.ours(KNOWN[name]).kind == "accepted"


def check(texts, count, seed, official):
    counts, disagreements = parity.compare(texts, count, seed, official)
    unexcused = [each for each in disagreements if each.excuse is None]
    shown = "\n\n".join(f"{each.reason}\n{each.official}\n{each.ours}\n{each.text}" for each in unexcused[:3])
    assert len(unexcused) <= count // 500, f"{len(unexcused)} of {count} disagree without an excuse\n{shown}"
    assert counts["official accepted, ours accepted"] > count // 20
    assert counts["official refused, ours refused"] > count // 4
    wrongly = counts["official refused, ours accepted"]
    assert wrongly <= count // 200, f"{wrongly} of {count} are refused by the official verifier and not by ours"


@pytest.mark.timeout(300)
def test_mutants_of_the_samples(official, seed):
    check(list(KNOWN.values()), 4000, seed, official)


@pytest.mark.timeout(300)
def test_mutants_of_single_ops(official, suites, seed):
    paths = Random(seed).sample(sorted(suites.rglob("*.mlir")), 60)
    texts = []
    for path in paths:
        try:
            texts += [text for _, text in parity.single_ops(path.read_text()) if len(text) < 6000]
        except SmeltError:
            continue
    check([text for text in texts if official.judge(text).accepted], 2000, seed, official)


def test_a_verifier_that_takes_everything_is_noticed(official, monkeypatch):
    monkeypatch.setattr(parity, "ours", lambda text: parity.Verdict("accepted"))
    _, disagreements = parity.compare(list(KNOWN.values()), 100, 1, official)
    assert sum(each.excuse is None for each in disagreements) > 20


def test_a_verifier_that_refuses_everything_is_noticed(official, monkeypatch):
    monkeypatch.setattr(parity, "ours", lambda text: parity.Verdict("refused", "no"))
    _, disagreements = parity.compare(list(KNOWN.values()), 100, 1, official)
    assert sum(each.excuse is None for each in disagreements) > 5


# ---- printing ----


@pytest.mark.parametrize("name", [name for name, text in KNOWN.items() if "?" not in text])
@pytest.mark.parametrize("generic", [False, True], ids=["pretty", "generic"])
def test_what_we_print_means_the_same(official, name, generic):
    program = parse(KNOWN[name])
    assert parity.same_meaning(KNOWN[name], print_program(program, generic=generic), official) is None


@pytest.mark.parametrize("name", [name for name, text in KNOWN.items() if "?" in text])
def test_what_we_export_is_accepted(official, name):
    exported = print_program(parse(KNOWN[name]), export=True)
    assert official.judge(exported).kind == "accepted", exported


def test_what_we_print_of_the_suites_means_the_same(official, suites, seed):
    for path in Random(seed).sample(sorted(suites.rglob("*.mlir")), 100):
        text = parity.without_checks(path.read_text())
        if "?" in text or not official.judge(text).accepted:
            continue
        for generic in (False, True):
            found = parity.same_meaning(text, print_program(parse(text), generic=generic), official)
            assert found is None, f"{path.name}: {found}"


def test_other_semantics_are_noticed(official):
    text = KNOWN["pretty"]
    assert parity.same_meaning(text, text.replace("dense<0.0", "dense<1.0"), official) is not None
    assert parity.same_meaning(text, text.replace("tensor<f32>", "tensor<f16>"), official) is not None
