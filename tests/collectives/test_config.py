from __future__ import annotations

import dataclasses
import pickle
import warnings
from pathlib import Path

import pytest

from topoccl.collectives.config import (
    Config,
    ConfigWarning,
    InterfaceFilter,
    check_agreement,
    markdown_table,
    option_names,
    trace_requested,
    variable_of,
)
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.logging import Level, Subsystem

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "topoccl.conf"
    path.write_text("# for the tests\n\nTOPOCCL_TRANSPORT = gloo\nTOPOCCL_TIMEOUT=20s\nTOPOCCL_ALGO=all_reduce:ring[a=1]\n")
    return path


def test_defaults() -> None:
    config = Config.from_environment({})
    assert config == Config()
    assert (config.transport, config.algo, config.timeout, config.fallback, config.shm) == ("auto", "", 600.0, "error", True)
    assert config.debug is Level.WARN
    assert set(config.sources.values()) == {"default"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.shm = False  # type: ignore[misc]


def test_every_variable_is_read() -> None:
    env = {
        "TOPOCCL_ALGO": "ring",
        "TOPOCCL_TRANSPORT": "MPI",
        "TOPOCCL_TOPO_FILE": "cluster:4x2",
        "TOPOCCL_TOPO_DUMP_FILE": "dump.yaml",
        "TOPOCCL_TUNE_FILE": "tune.yaml",
        "TOPOCCL_HOSTID": "left",
        "TOPOCCL_SOCKET_IFNAME": "^docker,lo",
        "TOPOCCL_DEBUG": "trace",
        "TOPOCCL_RAILS": "1",
        "TOPOCCL_DEBUG_SUBSYS": "^coll,P2P",
        "TOPOCCL_DEBUG_FILE": "log.%h.%p",
        "TOPOCCL_TIMEOUT": "1.5min",
        "TOPOCCL_FALLBACK": "print",
        "TOPOCCL_SHM": "0",
        "TOPOCCL_ATTACH": "0",
        "TOPOCCL_CONF_FILE": "/dev/null",
        "PATH": "/bin",
    }
    config = Config.from_environment(env)
    assert config == Config(
        algo="ring",
        transport="mpi",
        topo_file="cluster:4x2",
        topo_dump_file="dump.yaml",
        tune_file="tune.yaml",
        hostid="left",
        socket_ifname=InterfaceFilter(("docker", "lo"), exclude=True),
        debug=Level.TRACE,
        debug_subsys=frozenset(Subsystem) - {Subsystem.COLL, Subsystem.P2P},
        debug_file="log.%h.%p",
        timeout=90.0,
        fallback="print",
        shm=False,
        attach=False,
        rails="1",
        conf_file="/dev/null",
    )
    assert {variable_of(name) for name in option_names()} == set(env) - {"PATH"}
    again = Config.from_environment({variable_of(name): config.text(name) for name in option_names()})
    assert again == config, "text() is what the variable would say"
    assert pickle.loads(pickle.dumps(config)) == config


def test_arguments_beat_variables_beat_file_beats_defaults(conf: Path) -> None:
    env = {"TOPOCCL_CONF_FILE": str(conf), "TOPOCCL_TIMEOUT": "30", "TOPOCCL_FALLBACK": "silent"}
    config = Config.from_environment(env, fallback="print", shm=None)
    assert (config.transport, config.timeout, config.fallback, config.shm) == ("gloo", 30.0, "print", True)
    assert config.sources["transport"] == f"{conf}:3"
    assert config.sources["timeout"] == "variable"
    assert config.sources["fallback"] == "argument"
    assert config.sources["shm"] == "default"


def test_file_in_the_home_directory(tmp_path: Path, conf: Path) -> None:
    assert Config.from_environment({"HOME": str(tmp_path)}) == Config()
    conf.rename(tmp_path / ".topoccl.conf")
    assert Config.from_environment({"HOME": str(tmp_path)}).transport == "gloo"
    assert Config.from_environment({"HOME": str(tmp_path), "TOPOCCL_TRANSPORT": ""}).transport == "auto", "empty stands for the default"
    other = tmp_path / "other"
    other.write_text("TOPOCCL_SHM=0")
    assert Config.from_environment({"HOME": str(tmp_path)}, conf_file=other) == Config(shm=False, conf_file=str(other))


def test_arguments_may_be_ready_values() -> None:
    config = Config.from_environment({}, timeout=5, shm=False, debug=Level.INFO, topo_file=Path("a.yaml"), transport="memory")
    assert (config.timeout, config.shm, config.debug, config.topo_file, config.transport) == (5.0, False, Level.INFO, "a.yaml", "memory")
    assert isinstance(config.timeout, float)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("TOPOCCL_TRANSPORT", "ucx", "unknown value; known values: auto, tcp, mpi, gloo, memory"),
        ("TOPOCCL_DEBUG", "LOUD", "unknown level; known values: WARN, INFO, TRACE"),
        ("TOPOCCL_DEBUG_SUBSYS", "INIT,ALGO", "unknown subsystem 'ALGO'; known values: INIT,TOPO,"),
        ("TOPOCCL_DEBUG_SUBSYS", "^", "unknown subsystem ''"),
        ("TOPOCCL_TIMEOUT", "5 parsecs", "bad time '5 parsecs'"),
        ("TOPOCCL_TIMEOUT", "0", "a timeout of zero would fail every call"),
        ("TOPOCCL_TIMEOUT", "-1", "not negative"),
        ("TOPOCCL_FALLBACK", "yes", "unknown value; known values: error, print, silent"),
        ("TOPOCCL_SHM", "true", "neither 0 nor 1; known values: 1, 0"),
        ("TOPOCCL_SOCKET_IFNAME", "eth0,,lo", "an interface's name is empty"),
        ("TOPOCCL_SOCKET_IFNAME", "^", "an interface's name is empty"),
        ("TOPOCCL_SOCKET_IFNAME", "eth0,^lo", "'\\^lo' cannot be the name of an interface"),
        ("TOPOCCL_SOCKET_IFNAME", "a-name-much-too-long", "cannot be the name of an interface"),
    ],
)
def test_bad_value_names_variable_value_reason_and_known_values(tmp_path: Path, variable: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{variable}='.*: .*{reason}") as caught:
        Config.from_environment({variable: value})
    assert f"{variable}={value!r}: " in str(caught.value)
    assert "; known values: " in str(caught.value)
    path = tmp_path / "conf"
    path.write_text(f"\n{variable}={value}\n")
    with pytest.raises(ConfigError, match=rf"^{variable}='.*' \({path}:2\): "):
        Config.from_environment({"TOPOCCL_CONF_FILE": str(path)})
    name = variable.removeprefix("TOPOCCL_").lower()
    with pytest.raises(ConfigError, match=f"^{name}='"):
        Config.from_environment({}, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("timeout", 0, "timeout=0.0: a timeout of zero"),
        ("timeout", float("inf"), "timeout=inf: bad time"),
        ("timeout", True, "timeout=True: expected float or text"),
        ("shm", 1, "shm=1: expected bool or text"),
        ("debug", 2, "debug=2: expected Level or text"),
        ("transport", 3, "transport=3: expected str or text"),
        ("colour", "red", "unknown option 'colour'; known: algo, transport, "),
    ],
)
def test_bad_argument(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        Config.from_environment({}, **{name: value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("TOPOCCL_SHM=1\nTOPOCCL_ALGO ring\n", ":2: 'TOPOCCL_ALGO ring' is not of the form KEY=VALUE"),
        ("=1", ":1: '=1' is not of the form KEY=VALUE"),
        ("TOPOCCL_CONF_FILE=x", ":1: TOPOCCL_CONF_FILE cannot be set in the configuration file itself"),
    ],
)
def test_bad_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "conf"
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"^{path}{message}"):
        Config.from_environment({"TOPOCCL_CONF_FILE": str(path)})


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TOPOCCL_CONF_FILE='.*/missing': there is no such file"):
        Config.from_environment({"TOPOCCL_CONF_FILE": str(tmp_path / "missing")})
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory$"):
        Config.from_environment({"TOPOCCL_CONF_FILE": str(tmp_path)})
    (tmp_path / "latin").write_bytes(b"TOPOCCL_HOSTID=\xe9")
    with pytest.raises(ConfigError, match=r"cannot be read: not UTF-8: byte 0xe9 at offset 15$"):
        Config.from_environment({"TOPOCCL_CONF_FILE": str(tmp_path / "latin")})


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("TOPOCCL_ALGOS", "did you mean TOPOCCL_ALGO?"),
        ("TOPOCCL_TOPOFILE", "did you mean TOPOCCL_TOPO_FILE?"),
        ("TOPOCCL_IFNAME", "did you mean TOPOCCL_SOCKET_IFNAME?"),
        ("TOPOCCL_XYZZY", "known: TOPOCCL_ALGO, TOPOCCL_TRANSPORT, "),
    ],
)
def test_unknown_variable_is_warned_about(tmp_path: Path, variable: str, hint: str) -> None:
    with pytest.warns(ConfigWarning) as caught:
        assert Config.from_environment({variable: "1"}) == Config()
    assert str(caught[0].message).startswith(f"unknown variable {variable} has no effect; {hint}")
    assert caught[0].filename == __file__
    path = tmp_path / "conf"
    path.write_text(f"{variable}=1")
    with pytest.warns(ConfigWarning, match=f"^{path}:1: unknown variable {variable} has no effect"):
        Config.from_environment({"TOPOCCL_CONF_FILE": str(path)})


def test_other_variables_are_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Config.from_environment({"NCCL_ALGO": "ring", "TOPO": "x"})


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", ["eth0", "eth1", "eth10", "lo", "docker0"]),
        ("eth", ["eth0", "eth1", "eth10"]),
        ("eth1", ["eth1", "eth10"]),
        ("=eth1,lo", ["eth1", "lo"]),
        ("^docker,lo", ["eth0", "eth1", "eth10"]),
        ("^=eth1", ["eth0", "eth10", "lo", "docker0"]),
    ],
)
def test_interface_grammar(text: str, taken: list[str]) -> None:
    interfaces = InterfaceFilter.parse(text)
    assert [name for name in ("eth0", "eth1", "eth10", "lo", "docker0") if interfaces.matches(name)] == taken
    assert str(interfaces) == text
    assert interfaces.explicit == bool(text)


def test_agreement_leaves_out_what_may_differ() -> None:
    assert set(Config().agreement()) == {
        "TOPOCCL_ALGO",
        "TOPOCCL_TRANSPORT",
        "TOPOCCL_TOPO_FILE",
        "TOPOCCL_TUNE_FILE",
        "TOPOCCL_RAILS",
        "TOPOCCL_TIMEOUT",
        "TOPOCCL_FALLBACK",
        "TOPOCCL_SHM",
        "TOPOCCL_ATTACH",
    }
    left = Config.from_environment({"TOPOCCL_HOSTID": "a", "TOPOCCL_DEBUG": "INFO", "TOPOCCL_TIMEOUT": "600"})
    check_agreement([left.agreement(), Config().agreement()])


def test_disagreement_names_variables_ranks_and_values() -> None:
    configs = [Config(algo="ring" if rank in (1, 3) else "tree", shm=rank != 4).agreement() for rank in range(6)]
    with pytest.raises(ConfigError) as caught:
        check_agreement(configs)
    assert str(caught.value) == (
        "ranks must agree, but TOPOCCL_ALGO is 'tree' on ranks 0,2,4-5, 'ring' on ranks 1,3; "
        "TOPOCCL_SHM is '1' on ranks 0-3,5, '0' on rank 4"
    )
    with pytest.raises(ConfigError, match=r"TOPOCCL_NEW is unknown on rank 0, '1' on rank 1$"):
        check_agreement([{}, {"TOPOCCL_NEW": "1"}])


def test_algo_rules() -> None:
    known = {"all_reduce": ["ring", "tree"]}
    assert Config(algo="tree").algo_rules(known).forced("all_reduce", 1) == ("tree",)
    with pytest.raises(ConfigError, match=r"^TOPOCCL_ALGO='rnig': unknown algorithm 'rnig' for any collective; known: ring, tree$"):
        Config(algo="rnig").algo_rules(known)


def test_trace_is_known_even_if_the_rest_is_bad() -> None:
    assert trace_requested({"TOPOCCL_DEBUG": " trace", "TOPOCCL_SHM": "x"})
    assert not trace_requested({"TOPOCCL_DEBUG": "INFO"})
    assert not trace_requested({})


def test_document_is_current() -> None:
    _, _, rest = DOCUMENT.read_text().partition("<!-- begin table -->\n")
    table, end, _ = rest.partition("<!-- end table -->")
    assert end
    assert table == markdown_table(), "run: topoccl env --markdown, and put its output between the marks in docs/configuration.md"
