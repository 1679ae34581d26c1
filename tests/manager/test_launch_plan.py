"""The launch plan: what is added and by whom, what is left as the user had it, what contradicts itself."""

from __future__ import annotations

import ast
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_hust_ext import launch_environment, launch_plan
from vllm_hust_ext.discovery import Bundle, Inventory, Plugin
from vllm_hust_ext.distributions import Distribution
from vllm_hust_ext.launch_environment import is_loader_variable, means_on
from vllm_hust_ext.launch_model import EnvironmentItem, LaunchPlan, Member, Request
from vllm_hust_ext.launch_plan import make_plan
from vllm_hust_ext.manifest import parse_manifest

from tests.mutants import mutant  # noqa: F401

from .scratch import manifest


def member(name: str, configuration: dict[str, Any] | None = None, **changes: Any) -> Member:
    carrier = [{"type": "python_module", "module": f"{name}.plugin", "object": "load", "status": "active"}]
    document = manifest(f"org.{name}", **{"implementation": carrier, "activation": None, **changes})
    made = parse_manifest(json.dumps(document).encode())
    distribution = Distribution(Path(f"/x/{name}-1.dist-info"), Path("/x"), name, "1.0")
    return Member(Bundle(made, distribution, Path(f"/x/{name}/m.json"), name), configuration or {})


def activation(environment: dict[str, str] | None = None, config: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"environment": environment or {}, "additional_config": config or {}}


def request(*members: Member, command: str = "", variables: dict[str, str] | None = None, **more: Any) -> Request:
    plugins = tuple(
        Plugin(
            "vllm.general_plugins",
            f"{m.bundle.distribution.key}-plugin",
            f"{m.bundle.distribution.key}.plugin:load",
            m.bundle.distribution,
        )
        for m in members
    )
    inventory = Inventory({m.bundle.extension_id: m.bundle for m in members}, {}, plugins)
    import shlex

    return Request(members, inventory, variables or {}, shlex.split(command), **more)


def plan(*members: Member, **more: Any) -> LaunchPlan:
    return make_plan(request(*members, **more))


def item(made: LaunchPlan, name: str) -> EnvironmentItem:
    (found,) = [i for i in made.environment if i.name == name]
    return found


# -- environment ------------------------------------------------------------------------------------------------------


def test_each_item_names_its_owner() -> None:
    made = plan(
        member("a", activation=activation({"A": "1"})), member("b", activation=activation({"A": "1", "B": "2"}))
    )
    assert item(made, "A").owners == ("org.a", "org.b")
    assert item(made, "B").owners == ("org.b",)
    assert made.changes["VLLMHUST_EXT_ENABLED_BUNDLES"] == "org.a,org.b"


def test_the_users_variable_wins_and_the_difference_is_shown() -> None:
    one = member("a", activation=activation({"CONTROLLER": ""}))
    made = plan(one, variables={"CONTROLLER": "http://x"})
    kept = item(made, "CONTROLLER")
    assert (kept.action, kept.value, kept.wanted) == ("kept", "http://x", "")
    assert "CONTROLLER" not in made.changes
    turned = plan(one, variables={"CONTROLLER": "http://x"}, override=True)
    assert turned.changes["CONTROLLER"] == ""
    assert item(turned, "CONTROLLER").before == "http://x"


VARIABLES = st.dictionaries(
    st.sampled_from(["A", "B", "C", "VLLM_PLUGINS", "VLLM_X"]), st.sampled_from(["", "0", "1", "x"]), max_size=5
)


def _users_values_survive(mine: dict[str, str], wanted: dict[str, str]) -> bool:
    asked = {k: v for k, v in wanted.items() if k != "VLLM_PLUGINS"}
    made = make_plan(request(member("a", activation=activation(asked)), variables=mine))
    after = {**mine, **made.changes}
    return all(after[k] == v for k, v in mine.items() if k != "VLLM_PLUGINS")


@settings(max_examples=200)
@given(VARIABLES, VARIABLES)
def test_what_the_user_exported_survives_any_manifest(mine: dict[str, str], wanted: dict[str, str]) -> None:
    assert _users_values_survive(mine, wanted)


def test_a_mutant_that_overwrites_is_noticed(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    changed = mutant(
        launch_environment,
        "        elif self.request.override:\n            self.items",
        "        elif True:\n            self.items",
    )
    monkeypatch.setattr(launch_plan, "LaunchEnvironment", changed.LaunchEnvironment)
    assert not _users_values_survive({"A": "0"}, {"A": "1"})


def test_two_extensions_that_disagree_are_both_named_unless_the_user_decides() -> None:
    two = (member("a", activation=activation({"A": "1"})), member("b", activation=activation({"A": "2"})))
    (conflict,) = plan(*two).conflicts
    assert "'1' by org.a" in conflict.text
    assert "'2' by org.b" in conflict.text
    assert "--without org.a" in conflict.ways_out
    mine = plan(*two, variables={"A": "3"})
    assert not mine.conflicts
    assert item(mine, "A").action == "kept"
    assert plan(*two, variables={"A": "3"}, override=True).conflicts


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PATH", "PYTHONHOME", "DYLD_INSERT_LIBRARIES", "BASH_ENV"]
)
def test_loader_variables_need_permission(name: str) -> None:
    one = member("a", activation=activation({name: "/tmp/x"}))
    (conflict,) = plan(one).conflicts
    assert "org.a" in conflict.text
    assert name not in plan(one).changes
    allowed = plan(one, allowed_variables=frozenset({name}))
    assert not allowed.conflicts
    assert allowed.changes[name] == "/tmp/x"


def test_ordinary_names_are_no_loader_variables() -> None:
    assert not any(is_loader_variable(n) for n in ("PYTHONHASHSEED", "VLLM_X", "LDAP", "EXAMPLE_PATH"))


def test_names_that_no_environment_can_hold() -> None:
    for name, value in (("A=B", "1"), ("", "1"), ("A B", "1"), ("A", "x\0y")):
        assert plan(member("a", activation=activation({name: value}))).conflicts


def test_the_managers_own_variables_cannot_be_set_by_a_manifest() -> None:
    made = plan(member("a", activation=activation({"VLLMHUST_EXT_ENABLED_BUNDLES": "org.other"})))
    assert made.changes["VLLMHUST_EXT_ENABLED_BUNDLES"] == "org.a"
    assert any("manager's own" in w for w in made.warnings)


def test_a_list_in_a_manifest_only_names_what_it_needs() -> None:
    one = member("a", activation=activation({"VLLM_PLUGINS": "extra"}))
    assert "VLLM_PLUGINS" not in plan(one).changes
    assert plan(one, variables={"VLLM_PLUGINS": "x"}).changes["VLLM_PLUGINS"] == "x,extra,a-plugin"


def test_exported_gates_of_extensions_that_are_off_are_pointed_out() -> None:
    off = member("a", activation=activation({"GATE": "1"}))
    for value, said in (("1", True), ("true", True), ("0", False), ("off", False), ("", False)):
        base = request(off, variables={"GATE": value}, excluded={"org.a": "masked"})
        made = make_plan(replace(base, members=()))
        assert any("org.a is masked, but you exported GATE" in w for w in made.warnings) is said, value
    assert means_on("2")
    assert not means_on(None)


def test_ray_gets_the_names_that_it_would_not_copy() -> None:
    made = plan(member("a", activation=activation({"BIDKV_X": "1", "VLLM_Y": "1", "HF_Z": "1"})), variables={})
    assert made.changes["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] == "BIDKV_X,VLLMHUST_EXT_ENABLED_BUNDLES"
    merged = plan(
        member("a", activation=activation({"BIDKV_X": "1"})),
        variables={"VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": "MINE, BIDKV_X"},
    )
    assert merged.changes["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] == "MINE,BIDKV_X,VLLMHUST_EXT_ENABLED_BUNDLES"
    kept = plan(member("a", activation=activation({"GATE": "1"})), variables={"GATE": "2"})
    assert "GATE" in kept.changes["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"]


@pytest.mark.host
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
def test_the_prefixes_are_the_ones_of_the_installed_vllm() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0]) / "ray" / "ray_env.py"
    found = [
        ast.literal_eval(node.value)
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "DEFAULT_ENV_VAR_PREFIXES" and node.value
    ]
    assert [set(launch_environment.RAY_PREFIXES)] == found


# -- arguments --------------------------------------------------------------------------------------------------------


def config_of(made: LaunchPlan) -> Any:
    return json.loads(made.command[made.command.index("--additional-config") + 1])


@pytest.mark.parametrize(
    ("line", "merged"),
    [
        ("vllm serve m", {"e": 1}),
        ("""vllm serve m --additional-config '{"u": 2}'""", {"e": 1, "u": 2}),
        ("""vllm serve m --additional_config='{"u": 2}' --port 1""", {"e": 1, "u": 2}),
        ("vllm serve m --additional-config.u 2", {"e": 1, "u": 2}),
        ("vllm serve m --additional_config.deep.u=2", {"e": 1, "deep": {"u": 2}}),
        ("vllm serve m --config c.yaml", {"e": 1, "file": True}),
        ("python -m vllm.entrypoints.openai.api_server --model m", {"e": 1}),
    ],
)
def test_additional_config_merges_with_every_spelling(line: str, merged: Any) -> None:
    made = plan(
        member("a", activation=activation(config={"e": 1})),
        command=line,
        read_yaml=lambda p: {"additional_config": {"file": True}},
    )
    assert not made.conflicts
    assert config_of(made) == merged
    assert sum("dditional" in part for part in made.command) == 1


def test_extensions_merge_key_by_key_also_below() -> None:
    made = plan(
        member("a", activation=activation(config={"s": {"x": 1}, "same": [1]})),
        member("b", activation=activation(config={"s": {"y": 2}, "same": [1]})),
        command="vllm serve m",
    )
    assert config_of(made) == {"s": {"x": 1, "y": 2}, "same": [1]}
    owners = {i.key: i.owners for i in made.arguments}
    assert owners == {"s.x": ("org.a",), "s.y": ("org.b",), "same": ("org.a", "org.b")}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"k": 1}, {"k": 2}),
        ({"k": 1}, {"k": True}),
        ({"k": {"x": 1}}, {"k": 5}),
        ({"k": {"x": 1}}, {"k": {"x": {"y": 1}}}),
    ],
)
def test_a_real_conflict_names_both_owners(left: Any, right: Any) -> None:
    for first, second in ((left, right), (right, left)):
        made = plan(
            member("a", activation=activation(config=first)),
            member("b", activation=activation(config=second)),
            command="vllm serve m",
        )
        assert made.conflicts, (first, second)
        assert "org.a" in made.conflicts[0].text
        assert "org.b" in made.conflicts[0].text


def test_a_conflict_with_the_users_own_key_names_the_spelling() -> None:
    made = plan(member("a", activation=activation(config={"k": 1})), command="vllm serve m --additional-config.k 2")
    (conflict,) = made.conflicts
    assert "k is 2 in your command (--additional-config.k) and 1 by org.a" in conflict.text


def test_what_the_command_already_says_is_left_alone() -> None:
    made = plan(member("a", activation=activation(config={"k": 1})), command="vllm serve m --additional-config.k 1")
    assert made.command == made.original_command
    assert made.arguments[0].action == "same"


def test_other_commands_are_left_alone_and_that_is_said() -> None:
    for line in ("python x.py", "bash -c 'vllm serve m'", "vllm bench serve", "vllm-hust-vspec serve m"):
        made = plan(member("a", activation=activation(config={"k": 1})), command=line)
        assert made.command == made.original_command
        assert any("not passed: --additional-config" in w for w in made.warnings)


def test_the_qualification_key_is_never_forwarded() -> None:
    made = plan(
        member("a", activation=activation(config={"_manager_runtime_qualification": {"x": 1}})), command="vllm serve m"
    )
    assert made.command == ("vllm", "serve", "m")
    with_other = plan(
        member("a", activation=activation(config={"_manager_runtime_qualification": {"x": 1}, "k": 1})),
        member("b", activation=activation(config={"_manager_runtime_qualification": {"x": 2}})),
        command="vllm serve m",
    )
    assert config_of(with_other) == {"k": 1}
    assert not with_other.conflicts


COMPONENT = {
    "component_id": "w",
    "contracts": ["vllm.worker-class.v1"],
    "execution_planes": ["worker"],
    "isolation": "trusted_in_process",
    "implementation_ref": "a.worker:Worker",
}  # fmt: skip


def test_contracts_that_an_option_binds() -> None:
    one = member("a", components=[COMPONENT])
    assert plan(one, command="vllm serve m").command == ("vllm", "serve", "m", "--worker-cls", "a.worker.Worker")
    assert plan(one, command="vllm serve m --worker_cls a.worker.Worker").command[-2] == "--worker_cls"
    assert plan(one, command="vllm serve m --worker-cls other.W").conflicts
    other = member("b", components=[{**COMPONENT, "implementation_ref": "b.worker:Worker"}])
    (conflict,) = plan(one, other, command="vllm serve m").conflicts
    assert "org.a" in conflict.text
    assert "org.b" in conflict.text


def test_launch_options_of_the_configuration() -> None:
    one = member(
        "a", {"launch_options": {"speculative_config": {"n": 2}, "scheduler_reserve_output_budget": True, "odd": 1}}
    )
    made = plan(one, command="vllm serve m --speculative-config.model x")
    assert json.loads(made.command[made.command.index("--speculative-config") + 1]) == {"model": "x", "n": 2}
    assert "--scheduler-reserve-output-budget" in made.command
    assert any("launch_options.odd" in w for w in made.warnings)


def test_exclusive_claims() -> None:
    def claiming(name: str, mode: str) -> Member:
        return member(
            name, schema_version="0.3", resource_claims=[{"resource": "kv", "scope": "process", "mode": mode}]
        )

    assert not plan(claiming("a", "shared"), claiming("b", "shared")).conflicts
    (conflict,) = plan(claiming("a", "exclusive"), claiming("b", "shared")).conflicts
    assert "org.a claims kv in process (exclusive), and so does org.b (shared)" in conflict.text


def test_one_plugin_name_of_two_distributions() -> None:
    base = request(member("a"), member("b"))
    clash = replace(base.inventory, plugins=tuple(replace(p, name="same") for p in base.inventory.plugins))
    (conflict,) = make_plan(replace(base, inventory=clash)).conflicts
    assert "org.a (a) and org.b (b)" in conflict.text


def test_the_plan_is_pure_and_repeatable() -> None:
    asked = request(
        member("a", activation=activation({"A": "1"}, {"k": {"x": 1}})), command="vllm serve m", variables={"B": "2"}
    )
    assert make_plan(asked) == make_plan(asked)
    json.dumps(make_plan(asked).as_json())
