"""``topoccl explain``: what it prints, as text, as a table and as JSON, and what bad input gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from topoccl.algorithms.calibration import default_profile
from topoccl.algorithms.registry import algorithms_for
from topoccl.algorithms.select import Selector
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.tuning import Fitted, Measurement, Tuning, dump_tuning, fabric_digest
from topoccl.algorithms.tuning.files import ENTRY
from topoccl.collectives.cli import explain
from topoccl.collectives.cli.main import main
from topoccl.collectives.hosts import Neighbours, crowd_of_machines, share_machines
from topoccl.topology.discovery import HostFacts
from topoccl.topology.generators import generate
from topoccl.topology.load import load
from topoccl.topology.units import parse_size


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("ALGO", "TOPO_FILE", "TUNE_FILE", "FALLBACK", "TRANSPORT", "SHM", "DEBUG", "CONF_FILE"):
        monkeypatch.delenv(f"TOPOCCL_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no configuration file


class Explain:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *argv: str) -> tuple[int, str, str]:
        status = main(["explain", *argv])
        out, err = self.capsys.readouterr()
        return status, out, err

    def json(self, *argv: str) -> dict[str, Any]:
        status, out, err = self(*argv, "--json")
        assert (status, err) == (0, "")
        data = json.loads(out)
        assert isinstance(data, dict)
        return data


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Explain:
    return Explain(capsys)


def test_json_has_every_candidate(run: Explain) -> None:
    data = run.json("all_reduce", "64K", "--topology", "cluster:4x2")
    assert {"collective", "bytes", "choice", "reason", "candidates", "bound_seconds"} <= data.keys()
    assert (data["collective"], data["bytes"], data["ranks"], data["profile"]) == ("all_reduce", 65536, 8, "tcp")
    rows = {row["algorithm"]: row for row in data["candidates"]}
    assert len(rows) == sum(len(a.variants) for a in algorithms_for("all_reduce"))
    assert [name for name, row in rows.items() if row["rejected"] is None] == [data["choice"]]
    assert rows[data["choice"]]["seconds"] == data["seconds"] > data["bound_seconds"] > 0
    reasons = ("here it is the same schedule", "hosts are not wired")
    assert all(row["seconds"] is not None or row["rejected"].startswith(reasons) for row in rows.values())
    assert set(rows["ring[channels=1]"]["bytes_by_kind"]) == {"net", "pcie", "shm"}


def test_text_marks_the_choice_and_names_the_bound(run: Explain) -> None:
    status, out, err = run("AllReduce", "64K", "-t", "cluster:4x2")
    choice = run.json("all_reduce", "64K", "-t", "cluster:4x2")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith(choice["reason"])
    assert [line.split()[1] for line in lines if line.startswith("*")] == [choice["choice"]]
    assert lines[-2].startswith(f"{choice['bound_fraction']:.0%} of the bound")
    assert lines[-1] == "processors: each rank has a core of its own; --cores N says how many all share"
    assert choice["ranks_per_core"] == 1


def test_the_table_of_a_terminal(run: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    _, out, _ = run("all_reduce", "64K", "-t", "cluster:4x2")
    assert "│ ring[channels=4]" in out  # the brackets are not taken for markup
    assert "algorithm" in out
    assert "the choice" in out
    assert "of the bound" in out


def test_ranks_and_placements(run: Explain) -> None:
    assert run.json("all_reduce", "1K", "-t", "cluster:4x2", "--ranks", "3")["ranks"] == 3
    listed = run.json("all_gather", "1M", "-t", "cluster:4x2", "--ranks", "0,2,4,6,1,3,5,7")
    dealt = run.json("all_gather", "1M", "-t", "cluster:4x2", "--placement", "round_robin")
    assert listed == dealt
    assert run.json("all_gather", "1M", "-t", "cluster:4x2,placement=round_robin", "--placement", "packed") == {
        **run.json("all_gather", "1M", "-t", "cluster:4x2"),
        "topology": "cluster:4x2,placement=round_robin",
    }
    one_host = run.json("all_reduce", "1M", "-t", "cluster:4x2", "--ranks", "0,1")
    assert set(one_host["candidates"][0]["bytes_by_kind"]) == {"shm"}
    one_each = run.json("all_reduce", "1M", "-t", "cluster:4x2", "--placement", "round_robin", "--ranks", "4")
    assert one_each["bound"] != one_host["bound"]


def test_roots(run: Explain) -> None:
    first, last = (run.json("broadcast", "1M", "-t", "line:4", "--root", root) for root in ("0", "1"))
    assert run.json("broadcast", "1M", "-t", "line:4") == first
    assert first["bound"] != last["bound"]


def test_rules_come_from_the_option_else_the_variable(run: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOCCL_ALGO", "all_reduce:tree")
    assert run.json("all_reduce", "1M", "-t", "cluster:4x2")["choice"].startswith("tree")
    data = run.json("all_reduce", "1M", "-t", "cluster:4x2", "--algo", "all_reduce:ring[channels=2]")
    assert data["choice"] == "ring[channels=2]"
    assert all("TOPOCCL_ALGO allows only" in row["rejected"] for row in data["candidates"] if row["algorithm"] != data["choice"])


def test_measured_times(run: Explain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = {"collective": "all_reduce", "ranks": 8, "algorithm": "direct", "bytes": "1M", "segments": 2, "seconds": "1us"}

    def write(name: str, **fields: object) -> str:
        path = tmp_path / name
        path.write_text(json.dumps({"topoccl_tuning": 1, "entries": [entry | fields]}))
        return str(path)

    arguments = ("all_reduce", "1M", "-t", "cluster:4x2")
    measured, free = write("a.json"), run.json(*arguments)
    status, out, err = run(*arguments, "--tune-file", measured)
    assert (status, err) == (0, "")
    assert f"direct in 2 segments, 1us measured; direct, as measured in {measured}, is the fastest of " in out
    assert next(line for line in out.splitlines() if line.startswith("*")).split()[1:4] == ["direct", "1us,", "measured"]
    monkeypatch.setenv("TOPOCCL_TUNE_FILE", measured)
    assert {row["algorithm"] for row in run.json(*arguments)["candidates"] if row["mode"] == "measured"} == {"direct"}
    assert run.json(*arguments, "--tune-file", write("b.json", ranks=4)) == free
    status, out, err = run(*arguments, "--tune-file", write("c.json", second=1))
    assert (status, out) == (2, "")
    assert err == f"topoccl: error: {tmp_path}/c.json: entries[0].second: unknown key 'second'; known here: {', '.join(ENTRY)}\n"


def test_measured_times_of_another_topology(run: Explain, tmp_path: Path) -> None:
    here, path = generate("cluster:4x2"), tmp_path / "t.yaml"
    measurements = tuple(Measurement("all_reduce", ranks, "direct", 1 << 20, 1e-6) for ranks in (4, 8))
    path.write_text(dump_tuning(Tuning(measurements, here.digest)))
    on = ("all_reduce", "1M", "--tune-file", str(path), "-t")
    assert run.json(*on, "cluster:4x2")["choice"] == run.json(*on, "cluster:4x2", "--ranks", "4")["choice"] == "direct"
    status, out, err = run(*on, "cluster:2x4")
    assert status == 0
    assert err.startswith(f"topoccl: warning: the times of {path} are not used: they were measured on a topology with the digest ")
    assert err.endswith(f"{here.digest[:16]}, but 'cluster:2x4' has {generate('cluster:2x4').digest[:16]}\n")
    assert "measured" not in out


def test_what_cannot_serve_is_an_error_or_a_warning(run: Explain) -> None:
    arguments = ("all_reduce", "1M", "-t", "cluster:4x2", "--algo", "all_reduce:ring[channels=0]")
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("topoccl: error: no allowed algorithm can serve all_reduce of 1M bytes among 8 ranks (ring[channels=0]")
    status, out, err = run(*arguments, "--fallback", "print")
    assert status == 0
    assert err.startswith("topoccl: warning: no allowed algorithm can serve")
    assert run(*arguments, "--fallback", "silent")[2] == ""


def test_transports(run: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {name: run.json("all_reduce", "1K", "-t", "cluster:2x1", "--transport", name)["seconds"] for name in ("ideal", "mpi", "gloo")}
    assert seconds["ideal"] < seconds["mpi"] < seconds["gloo"]
    assert run.json("all_reduce", "1K", "-t", "dgx-a100:1", "--algo", "all_reduce:ring")["profile"] == "ideal"
    monkeypatch.setenv("TOPOCCL_SHM", "0")
    assert run.json("all_reduce", "1K", "-t", "cluster:2x1")["profile"] == "tcp, no shared memory"


def test_the_topology_may_come_from_a_variable_or_from_this_host(run: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.json("barrier", "0", "--ranks", "1")["ranks"] == 1
    monkeypatch.setenv("TOPOCCL_TOPO_FILE", "cluster:2x1")
    assert run.json("barrier", "0")["topology"] == "cluster:2x1"
    monkeypatch.setenv("TOPOCCL_TOPO_FILE", "none.yaml")
    status, out, err = run("barrier", "0")
    assert (status, out) == (2, "")
    assert err.startswith("topoccl: error: TOPOCCL_TOPO_FILE: no topology 'none.yaml': no such file")


def test_unequal_counts(run: Explain) -> None:
    data = run.json("all_to_all", "64K", "-t", "cluster:2x2", "--uneven")
    assert "judged by their mean" in data["reason"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["all_rejoice", "1M"], "unknown collective 'all_rejoice'; known: all_reduce, all_gather"),
        (["all_reduce", "9999999T"], "bad size '9999999T': expected a number of bytes"),
        (["all_reduce", "1Q"], "bad size '1Q': expected a number of bytes"),
        (["all_reduce", "1M", "--algo", "rng"], "unknown algorithm 'rng' for any collective; known: bine, binomial, bruck"),
        (["all_reduce", "1M", "-t", "clutser:4x2"], "unknown topology generator 'clutser:4x2' (did you mean 'cluster'?); known: "),
        (["all_reduce", "1M", "-t", "no/such.yaml"], "no topology 'no/such.yaml'"),
        (["all_reduce", "1M", "--ranks", "9"], "has 8 slots, fewer than the 9 ranks"),
        (["all_reduce", "1M", "--ranks", "0,1,x"], "--ranks 0,1,x: expected a number of ranks, or slots such as 0,4,1,5"),
        (["all_reduce", "1M", "--ranks", "0,8"], "rank placed on slot 8, but there are only 8 slots"),
        (["all_reduce", "1M", "--placement", "random"], "--placement random: unknown; known: packed, round_robin"),
        (["all_reduce", "1M", "--placement", "packed", "--ranks", "0,1"], "give one of them"),
        (["all_reduce", "1M", "--transport", "ucx"], "transport='ucx': unknown value; known values: auto, tcp, mpi, gloo, memory"),
        (["all_reduce", "1M", "--fallback", "maybe"], "fallback='maybe': unknown value; known values: error, print, silent"),
        (["all_reduce", "1M", "--dtype", "float31"], "unknown dtype 'float31'; known: int8"),
        (["all_reduce", "1M", "--root", "1"], "all_reduce: root is 1; it has none"),
        (["broadcast", "1M", "--root", "8"], "root 8 is not a rank of a group of 8"),
        (["all_reduce", "1M", "--cores", "0"], "--cores 0: expected a positive number of cores that all ranks share"),
        (["all_reduce", "1M", "--cores", "two"], "--cores two: expected a positive number of cores that all ranks share"),
        (["all_reduce", "1M", "--cores", "2", "--transport", "ideal"], "--cores 2: ideal counts links alone, and no processors"),
        (["all_reduce", "1M", "--uneven"], "only all_to_all can have unequal counts, not all_reduce"),
    ],
)
def test_bad_input_is_one_line(run: Explain, argv: list[str], message: str) -> None:
    argv = argv if "-t" in argv else [*argv, "-t", "cluster:4x2"]
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert err.startswith("topoccl: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["cluster-2x4", "uneven-3-2-1", "ring-5", "line-4"])
@pytest.mark.parametrize(("size", "cores"), [("64K", 2), ("1M", 2), ("64K", 8)])
def test_told_of_the_cores_it_names_what_programs_choose_there(run: Explain, name: str, size: str, cores: int) -> None:
    path = Path(__file__).parents[2] / "bench/fabrics" / f"{name}.yaml"
    fabric = load(str(path))
    cpus = frozenset(range(cores))
    seen = [HostFacts(host, "boot", at, tuple(cpus), None, (), (), (), None, None) for at, host in enumerate(fabric.host_of_rank)]
    neighbours = Neighbours(fabric.host_of_rank, None, {}, (cpus,) * fabric.num_ranks)
    machine, shared = crowd_of_machines(seen), share_machines(seen, neighbours.hosts)
    profile = default_profile("tcp").on_hosts(neighbours.crowd, attach=True, machine=machine, shared=shared)
    program = Selector(fabric, profile=profile)
    for collective in ("all_reduce", "all_to_all", "broadcast"):
        spec = CollectiveSpec(collective, fabric.num_ranks, 0 if collective == "broadcast" else None)
        choice = program.choose(spec, parse_size(size), 4)
        told = run.json(collective, size, "-t", str(path), "--cores", str(cores))
        assert (told["choice"], told["segments"], told["seconds"]) == (choice.algorithm, choice.segments, choice.seconds)
        assert told["ranks_per_core"] == max(1, fabric.num_ranks / cores)


def test_hosts_share_a_machine_where_it_started_but_once() -> None:
    def started(*boots: str) -> list[HostFacts]:
        return [HostFacts(f"rank {at}", boot, at, (0,), None, (), (), (), None, None) for at, boot in enumerate(boots)]

    assert share_machines(started("x", "y", "x"), ["a", "b", "c"])
    assert not share_machines(started("x", "y", "x"), ["a", "b", "a"])
    assert not share_machines(started("", "", ""), ["a", "b", "c"]), "what does not say when it started is a machine of its own"


def test_a_forest_has_to_be_clearly_faster(run: Explain) -> None:
    mesh = str(Path(__file__).parents[2] / "bench" / "fabrics" / "mesh-2x3.yaml")
    for size, clearly in (("1M", False), ("4M", True)):
        _, out, _ = run("all_reduce", size, "-t", mesh, "--cores", "2")
        forest = next(line for line in out.splitlines() if line.lstrip("* ").startswith("forest"))
        assert forest.startswith("*") == clearly
        assert ("less than 5% faster than ring[channels=2], with more messages" in forest) != clearly
        assert ("forest is predicted to be faster (less than 5% faster" in out.splitlines()[0]) != clearly


def test_cores_that_ranks_share(run: Explain) -> None:
    own, two, many = (run.json("all_reduce", "4K", "-t", "cluster:4x2", *more) for more in ((), ("--cores", "2"), ("--cores", "8")))
    assert (own["ranks_per_core"], two["ranks_per_core"], many["ranks_per_core"]) == (1, 4, 1)
    assert two["seconds"] > own["seconds"] > many["seconds"], "links between hosts of one machine pass some bytes at once"
    mesh = str(Path(__file__).parents[2] / "bench" / "fabrics" / "mesh-2x3.yaml")
    forest = [run.json("all_reduce", "1M", "-t", mesh, "--cores", cores)["seconds"] for cores in ("4", "5", "6", "7")]
    assert forest == sorted(forest, reverse=True)
    _, out, _ = run("all_reduce", "4K", "-t", "cluster:4x2", "--cores", "1")
    assert out.splitlines()[-1] == "processors: 8 ranks share 1 core, all hosts being one machine"
    _, out, _ = run("all_reduce", "4K", "-t", "cluster:4x2", "--cores", "2", "--concurrent", "0,1;2,3")
    assert out.splitlines()[-1] == "processors: 8 ranks share 2 cores, all hosts being one machine"
    _, out, _ = run("all_reduce", "4K", "-t", "cluster:4x2", "--transport", "ideal")
    assert "processors" not in out


def test_item_sizes_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for name, size in explain.ITEMSIZES.items():
        dtype = getattr(torch, {"float8": "float8_e4m3fn"}.get(name, name))
        assert torch.empty(1, dtype=dtype).element_size() == size


def test_fitted_constants(run: Explain, tmp_path: Path) -> None:
    """They hold in any placement, times only in the one that was measured."""
    fabric = generate("cluster:4x2")
    fitted = Fitted((("network.efficiency", 0.5),))
    entry = Measurement("all_reduce", 8, "direct", 1 << 20, 1e-6, 1)
    path = tmp_path / "t.yaml"
    path.write_text(dump_tuning(Tuning((entry,), fabric.digest, transport="mpi", fabric=fabric_digest(fabric), fitted=fitted)))
    argv = ("all_reduce", "1M", "-t", "cluster:4x2", "--tune-file", str(path))
    _, out, err = run(*argv)
    assert "direct" in out.splitlines()[0]
    assert out.splitlines()[-1] == f"predicted with what {path} says of mpi: network.efficiency 0.5"
    assert err == ""
    _, out, err = run(*argv, "--placement", "round_robin", "--json")
    assert json.loads(out)["profile"] == "mpi, tuned"
    assert json.loads(out)["choice"] != "direct"
    assert "they were measured on a topology with the digest" in err
    _, out, err = run(*argv, "--transport", "gloo", "--json")
    assert json.loads(out)["profile"] == "gloo"
    assert "they were measured over mpi, and this is gloo" in err
