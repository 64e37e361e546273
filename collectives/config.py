"""The configuration: every option in one frozen object, read once.

Arguments beat ``TOPOCCL_*`` variables, variables beat the file (``TOPOCCL_CONF_FILE``, else ``~/.topoccl.conf``; lines of the
form ``KEY=VALUE``), the file beats the defaults. No other module reads a ``TOPOCCL_*`` variable.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from topoccl.algorithms.selection_rules import AlgoRules, parse_algo
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.logging import DEFAULT_SUBSYSTEMS, Level, Logger, Subsystem, parse_subsystems
from topoccl.topology.graph import Topology, TopologyError
from topoccl.topology.load import load
from topoccl.topology.units import parse_time

PREFIX = "TOPOCCL_"
LONGEST_TIMEOUT = 1e9  # seconds; Gloo counts milliseconds, and locks nanoseconds, in 64 bits
DEFAULT_FILE = ".topoccl.conf"  # in the home directory


class ConfigWarning(UserWarning):
    """A variable or a line of the configuration file that has no effect."""


@dataclass(frozen=True, slots=True)
class InterfaceFilter:
    """Which network interfaces may be used, in NCCL's grammar.

    ``eth,ib`` takes names that begin so, ``=eth0,eth1`` exactly these names, ``^docker,lo`` and ``^=eth3`` all but those.
    Without names it takes every interface (``explicit`` is then False, and whoever chooses leaves loopback and the like out).
    """

    names: tuple[str, ...] = ()
    exact: bool = False
    exclude: bool = False

    @classmethod
    def parse(cls, text: str) -> InterfaceFilter:
        """Reads ``text``; raises ValueError for an empty name or one that no interface can have."""
        rest = text.strip()
        if not rest:
            return cls()
        exclude = rest.startswith("^")
        rest = rest.removeprefix("^")
        exact = rest.startswith("=")
        names = tuple(name.strip() for name in rest.removeprefix("=").split(","))
        for name in names:
            if not name:
                raise ValueError("an interface's name is empty")
            if len(name) > 15 or any(c.isspace() or c in "/^=" for c in name):
                raise ValueError(f"{name!r} cannot be the name of an interface (at most 15 characters, no space, '/', '^' or '=')")
        return cls(names, exact, exclude)

    @property
    def explicit(self) -> bool:
        return bool(self.names)

    def matches(self, name: str) -> bool:
        """Whether the interface called ``name`` may be used."""
        if not self.names:
            return True
        found = name in self.names if self.exact else name.startswith(self.names)
        return found != self.exclude

    def __str__(self) -> str:
        return ("^" if self.exclude else "") + ("=" if self.exact else "") + ",".join(self.names)


def _one_of(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in known:
            raise ValueError("unknown value")
        return text.strip().lower()

    return parse


def _level(text: str) -> Level:
    try:
        return Level[text.strip().upper()]
    except KeyError:
        raise ValueError("unknown level") from None


def _switch(text: str) -> bool:
    if text.strip() not in ("0", "1"):
        raise ValueError("neither 0 nor 1")
    return text.strip() == "1"


def check_timeout(timeout: str | float) -> float:
    """Seconds; a time that is longer than clocks can count becomes :data:`LONGEST_TIMEOUT`.

    Raises:
        ValueError: not a time, or none at all.
    """
    seconds = parse_time(timeout)
    if seconds == 0:
        raise ValueError("a timeout of zero would fail every call")
    return min(seconds, LONGEST_TIMEOUT)


def _path(text: str) -> str:
    return text.strip()


def _option(
    default: Any, parse: Callable[[str], Any], meaning: str, known: str, *, agree: bool = True, show: Callable[[Any], str] = str
) -> Any:
    """A field of :class:`Config`: its variable is ``TOPOCCL_`` and its name in capitals.

    Args:
        default: the value when nobody says anything.
        parse: from the text of a variable; raises ValueError.
        meaning, known: for the documentation and for messages.
        agree: whether all ranks must have the same value.
        show: back to text that ``parse`` reads.
    """
    return field(default=default, metadata={"parse": parse, "meaning": meaning, "known": known, "agree": agree, "show": show})


def _show_subsystems(value: frozenset[Subsystem]) -> str:
    return "ALL" if value == frozenset(Subsystem) else ",".join(s for s in Subsystem if s in value)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every option of topoccl. ``docs/configuration.md`` shows this table; :meth:`from_environment` fills it.

    ``sources`` says for each field where its value came from and takes no part in comparisons.
    """

    algo: str = _option(
        "",
        str.strip,
        "Which algorithms may be chosen, for each collective and message size.",
        "`ring,tree;all_reduce:hierarchical;all_to_all:^pairwise`, `all_reduce:tree@0-64K,ring@64K-max`; empty allows all",
    )
    transport: str = _option(
        "auto",
        _one_of("auto", "tcp", "mpi", "gloo", "memory"),
        "What carries messages between hosts.",
        "`auto`, `tcp`, `mpi`, `gloo`, `memory` (threads of one process)",
    )
    topo_file: str = _option(
        "",
        _path,
        "A description of the fabric to use in place of discovery.",
        "a file in any format of [formats.md](formats.md), or a generator such as `cluster:4x2`",
    )
    topo_dump_file: str = _option("", _path, "Where rank 0 writes the fabric that is used.", "a file name", agree=False)
    tune_file: str = _option("", _path, "Measured times that replace predicted ones in the choice of an algorithm.", "a file name")
    hostid: str = _option(
        "",
        str.strip,
        "This host's identity; ranks share memory only where it is equal and a probe succeeds.",
        "any text; empty means host name, boot id and network namespace",
        agree=False,
    )
    socket_ifname: InterfaceFilter = _option(
        InterfaceFilter(),
        InterfaceFilter.parse,
        "Which network interfaces may be used.",
        "`eth,ib` (begin so), `=eth0,eth1` (exactly), `^docker,lo` (all but); empty chooses by itself",
        agree=False,
    )
    rails: str = _option(
        "auto",
        _one_of("auto", "0", "1"),
        "Whether messages between hosts are spread over several NICs per host, where these are on networks of their own.",
        "`auto` (where it can be done), `0` (one NIC), `1` (where it cannot be done, that is an error)",
    )
    debug: Level = _option(
        Level.WARN, _level, "How much is said.", "`WARN`, `INFO`, `TRACE`", agree=False, show=lambda value: str(value.name)
    )
    debug_subsys: frozenset[Subsystem] = _option(
        DEFAULT_SUBSYSTEMS,
        parse_subsystems,
        "What is spoken of at INFO and TRACE.",
        f"`{','.join(Subsystem)}`, `ALL`; a leading `^` excludes the list",
        agree=False,
        show=_show_subsystems,
    )
    debug_file: str = _option(
        "",
        _path,
        "Where lines are written.",
        "a file name in which `%h` is the host and `%p` the process; empty means standard error",
        agree=False,
    )
    timeout: float = _option(
        600.0,
        check_timeout,
        "How long a call may take before it fails.",
        "a time such as `30s`, `2min`; seconds without a unit",
        show=lambda value: f"{value:.12g}s",
    )
    fallback: str = _option(
        "error",
        _one_of("error", "print", "silent"),
        "What happens when the asked-for algorithm cannot serve a call: fail, say so and take another, or just take another.",
        "`error`, `print`, `silent`",
    )
    shm: bool = _option(
        True, _switch, "Whether ranks of one host talk through shared memory.", "`1`, `0`", show=lambda value: "1" if value else "0"
    )
    attach: bool = _option(
        True,
        _switch,
        "Whether ranks of one host read long messages from each other's buffers, where the system allows it (cross-memory attach).",
        "`1`, `0`",
        show=lambda value: "1" if value else "0",
    )
    conf_file: str = _option(
        "", _path, "The configuration file.", "a file name; empty means `~/.topoccl.conf`, where that exists", agree=False
    )
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_environment(cls, env: Mapping[str, str], **overrides: Any) -> Config:
        """The configuration of this process. An empty variable stands for the default.

        Args:
            env: the environment, usually ``os.environ``.
            overrides: arguments by field name; text is read as the variable's would be, None means not given.

        Raises:
            ConfigError: a value that cannot be used, an unreadable file or line of it, an unknown argument.

        Warns:
            ConfigWarning: an unknown ``TOPOCCL_*`` variable or key of the file, with the nearest known name.
        """
        options = dict(_options())
        by_variable = {variable_of(name): name for name in options}
        found: dict[str, tuple[Any, str]] = {}  # field: (text or value, where it came from)

        def take(variable: str, text: str, source: str) -> None:
            if variable in by_variable:
                found[by_variable[variable]] = (text, source)
            else:
                near = difflib.get_close_matches(variable.removeprefix(PREFIX).lower(), options, n=1, cutoff=0.5)
                hint = f"did you mean {variable_of(near[0])}?" if near else f"known: {', '.join(by_variable)}"
                place = "" if source == "variable" else f"{source}: "
                warnings.warn(f"{place}unknown variable {variable} has no effect; {hint}", ConfigWarning, stacklevel=3)

        for line, key, text in _read_file(env, overrides.get("conf_file")):
            take(key, text, line)
        for key in sorted(env):
            if key.startswith(PREFIX):
                take(key, env[key], "variable")
        for name, value in overrides.items():
            if name not in options:
                raise ConfigError(f"unknown option {name!r}; known: {', '.join(options)}")
            if value is not None:
                found[name] = (value, "argument")

        values = {name: _value(option, *found[name]) for name, option in options.items() if name in found}
        sources = {name: found[name][1] if name in found else "default" for name in options}
        return cls(**values, sources=sources)

    def agreement(self) -> dict[str, str]:
        """What all ranks must agree on: the value, as text, of each such variable (see :func:`check_agreement`)."""
        return {variable_of(name): self.text(name) for name, option in _options() if option.metadata["agree"]}

    def text(self, name: str) -> str:
        """The value of field ``name`` as its variable would say it."""
        return str(self.__dataclass_fields__[name].metadata["show"](getattr(self, name)))

    def algo_rules(self, known: Mapping[str, Sequence[str]]) -> AlgoRules:
        """``algo`` parsed; ``known`` maps each collective to the names of its algorithms. Raises ConfigError."""
        try:
            return parse_algo(self.algo, known)
        except ValueError as error:
            raise ConfigError(f"{variable_of('algo')}={self.algo!r}: {error}") from None

    def described(self) -> Topology | None:
        """The fabric that ``topo_file`` names, None where it names none. Raises TopologyError."""
        if not self.topo_file:
            return None
        try:
            return load(self.topo_file)
        except TopologyError as error:
            raise TopologyError(f"{variable_of('topo_file')}: {error}") from None

    def logger(self, rank: int | None = None) -> Logger:
        """A logger that follows ``debug``, ``debug_subsys`` and ``debug_file``."""
        return Logger(self.debug, self.debug_subsys, self.debug_file or None, rank=rank)


def _options() -> Iterator[tuple[str, Field[Any]]]:
    return ((option.name, option) for option in fields(Config) if option.metadata)


def option_names() -> tuple[str, ...]:
    """The fields of :class:`Config` that a variable can set, in the order of the documentation."""
    return tuple(name for name, _ in _options())


def variable_of(name: str) -> str:
    """The variable of field ``name``."""
    return PREFIX + name.upper()


def _value(option: Field[Any], value: Any, source: str) -> Any:
    """``value`` (text, or ready if it is an argument) as the field's type."""
    name = option.name if source == "argument" else variable_of(option.name)
    where = "" if source in ("argument", "variable") else f" ({source})"
    kind = type(option.default)
    try:
        if isinstance(value, str | os.PathLike):
            text = os.fspath(value)
            return option.metadata["parse"](text) if text.strip() else option.default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind):
            raise ValueError(f"expected {kind.__name__} or text")
        option.metadata["parse"](option.metadata["show"](value))  # a ready value passes the same checks as text
        return value
    except ValueError as error:
        known = option.metadata["known"].replace("`", "")
        raise ConfigError(f"{name}={value!r}{where}: {error}; known values: {known}") from None


def _read_file(env: Mapping[str, str], argument: str | None) -> Iterator[tuple[str, str, str]]:
    """(place, key, value) for each entry of the configuration file."""
    named = argument or env.get(variable_of("conf_file"), "").strip()
    if named:
        path = Path(named)
    elif env.get("HOME"):
        path = Path(env["HOME"], DEFAULT_FILE)
    else:
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        if named:
            raise ConfigError(f"{variable_of('conf_file')}={named!r}: there is no such file") from None
        return
    except OSError as error:
        raise ConfigError(f"the configuration file {str(path)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        at = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise ConfigError(f"the configuration file {str(path)!r} cannot be read: not UTF-8: {at}") from None
    for number, line in enumerate(lines, start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{path}:{number}: {entry!r} is not of the form KEY=VALUE")
        if key.strip() == variable_of("conf_file"):
            raise ConfigError(f"{path}:{number}: {key.strip()} cannot be set in the configuration file itself")
        yield f"{path}:{number}", key.strip(), value.strip()


def check_agreement(all_configs: Sequence[Mapping[str, str]]) -> None:
    """Compares what :meth:`Config.agreement` gave on each rank (index = rank).

    Raises:
        ConfigError: ranks differ; the message names each variable, its values and the ranks that have them.
    """
    differences = []
    for variable in sorted({key for config in all_configs for key in config}):
        ranks_of: dict[str | None, list[int]] = {}
        for rank, config in enumerate(all_configs):
            ranks_of.setdefault(config.get(variable), []).append(rank)
        if len(ranks_of) > 1:
            values = ", ".join(f"{'unknown' if value is None else repr(value)} on {_ranks(ranks)}" for value, ranks in ranks_of.items())
            differences.append(f"{variable} is {values}")
    if differences:
        raise ConfigError(f"ranks must agree, but {'; '.join(differences)}")


def _ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0-2,5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def trace_requested(env: Mapping[str, str]) -> bool:
    """Whether tracebacks are wanted, asked of the environment alone: the answer must not fail where the rest does."""
    return env.get(variable_of("debug"), "").strip().upper() == Level.TRACE.name


def markdown_table() -> str:
    """The table of all variables in ``docs/configuration.md``."""
    rows = ["| Variable | Meaning | Values | Default | Equal on all ranks |", "|---|---|---|---|---|"]
    plain = Config()
    for name, option in _options():
        default = f"`{plain.text(name)}`" if plain.text(name) else "empty"
        same = "yes" if option.metadata["agree"] else "no"
        rows.append(f"| `{variable_of(name)}` | {option.metadata['meaning']} | {option.metadata['known']} | {default} | {same} |")
    return "\n".join(rows) + "\n"
