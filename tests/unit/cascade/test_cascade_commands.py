"""The commands: what they print, what they refuse in one line, and what a calibration makes of its cells."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import jsonschema
import pytest

from vllm_ascend_split_batch.cascade import profiles
from vllm_ascend_split_batch.cascade.commands import SUBCOMMANDS, calibrate, main
from vllm_ascend_split_batch.cascade.commands.model_config import read_dtype, read_shape
from vllm_ascend_split_batch.cascade.cost_model import AttentionShape, Coefficients, CostModel
from vllm_ascend_split_batch.cascade.fitting import Cell
from vllm_ascend_split_batch.cascade.measurement import Timing
from vllm_ascend_split_batch.cascade.profiles import Key
from vllm_ascend_split_batch.command_group import CommandError

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "docs" / "formats" / "cascade-profile.schema.json").read_text())
CONFIG = {
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def explain(model: Path, *arguments: str) -> list[str]:
    return ["explain", "--model", str(model), "--device", "Ascend910B2", "--graph", *arguments]


def test_the_command_is_contributed():
    (entry,) = [e for e in metadata.entry_points(group="vllm_hust_ext.commands") if e.name == "cascade"]
    assert entry.value == "vllm_ascend_split_batch.cascade.commands"


def test_it_runs_as_the_manager_runs_it(model):
    """By `python -m`, without importing anything beyond the standard library."""
    code = (
        "import sys, runpy; before = set(sys.modules)\n"
        f"sys.argv = ['cascade', *{explain(model, '--batch', '64', '--prefix', '8192')!r}]\n"
        "try: runpy.run_module('vllm_ascend_split_batch.cascade.commands', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "foreign = sorted(new - set(sys.stdlib_module_names) - {'vllm_ascend_split_batch'})\n"
        "assert not foreign, foreign\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "decision    two stages: " in done.stdout


def test_the_text_of_a_win(model, capsys):
    assert main(explain(model, "--batch", "64", "--prefix", "8192")) == 0
    out = capsys.readouterr().out
    assert "VLLM_ASCEND_CASCADE_MIN_PREFIX=8192: 8192 meets it" in out
    assert "break-even at 64 requests: 4866 shared tokens, margin of 3% included" in out
    assert "two stages are predicted to save 30.5% of the host's attention time; 3% is needed" in out


@pytest.mark.parametrize(
    ("arguments", "environment", "decision"),
    [
        (
            ("--batch", "64", "--prefix", "7936"),
            {},
            "the host's own attention: a floor is not met (without the floors: two",
        ),
        (
            ("--batch", "64", "--prefix", "7936"),
            {"VLLM_ASCEND_CASCADE_MIN_PREFIX": "4096"},
            "two stages: two stages are",
        ),
        (
            ("--batch", "64", "--prefix", "4096"),
            {"VLLM_ASCEND_CASCADE_MIN_PREFIX": "4096"},
            "the host's own attention: two stages are predicted to take",
        ),
        (
            ("--batch", "8", "--prefix", "8192"),
            {"VLLM_ASCEND_CASCADE_MIN_REQS": "2"},
            "the host's own attention: 8 requests or 8192 shared tokens are fewer than were ever measured (32 requests",
        ),
        (("--batch", "64", "--prefix", "8192", "--tier", "own"), {}, "the host's own attention: no profile for device"),
    ],
)
def test_other_decisions(model, capsys, monkeypatch, arguments, environment, decision):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(explain(model, *arguments)) == 0
    assert f"decision    {decision}" in capsys.readouterr().out


def test_the_break_even_is_that_of_the_decision(model, capsys):
    """More requests than were measured are judged as the most that were; fewer never are in two stages."""
    main(explain(model, "--batch", "128", "--prefix", "8192"))
    assert "break-even at 128 requests: 4866 shared tokens" in capsys.readouterr().out
    main(explain(model, "--batch", "8", "--prefix", "65536"))
    assert "break-even at 8 requests: none" in capsys.readouterr().out


def test_a_step_beyond_what_was_measured_says_what_it_is_judged_by(model, capsys):
    main(explain(model, "--batch", "200", "--prefix", "65536"))
    assert "in the largest step that was measured (64 requests, 16384 tokens)" in capsys.readouterr().out
    main(explain(model, "--batch", "64", "--prefix", "16384"))
    assert "largest step" not in capsys.readouterr().out


def test_an_unknown_device_is_answered_with_the_known_ones(model, capsys):
    main([*explain(model, "--batch", "64", "--prefix", "8192"), "--device", "910B2"])
    assert "(profiles are shipped for Ascend910B2, emulated-npu)" in capsys.readouterr().out


def test_json_holds_the_terms(model, capsys):
    assert main(explain(model, "--batch", "64", "--prefix", "8192", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["use"], document["reason"]) == (True, "predicted_win")
    prediction = document["prediction"]
    for arm in ("stock", "cascade"):
        terms = sum(prediction[f"{arm}_terms_us_per_layer"].values())
        assert prediction[f"{arm}_us"] == pytest.approx(48 * terms + (arm == "cascade") * prediction["cascade_step_us"])
    assert document["profile"]["origin"] == "shipped"


def test_the_profile_of_the_environment(model, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_ASCEND_CASCADE_PROFILE", "floors")
    assert main(explain(model, "--batch", "32", "--prefix", "8192", "--tier", "own")) == 0
    assert "decision    two stages: nothing is predicted" in capsys.readouterr().out
    monkeypatch.setenv("VLLM_ASCEND_CASCADE_PROFILE", str(tmp_path / "none.json"))
    assert "none.json: cannot be read" in refused(capsys, explain(model, "--batch", "32", "--prefix", "8192"))


def test_json_without_a_profile(model, capsys):
    assert main(explain(model, "--batch", "64", "--prefix", "8192", "--tier", "host", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["use"], document["reason"], document["prediction"]) == (False, "no_profile", None)


def refused(capsys, arguments: list[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no JSON object"),
        (json.dumps({**CONFIG, "num_attention_heads": None}), "num_attention_heads is None, a whole number"),
        (json.dumps({**CONFIG, "num_key_value_heads": 7}), "40 query heads are no multiple of 7 KV heads"),
        (json.dumps({**CONFIG, "torch_dtype": "int8"}), "dtype is 'int8', known: bfloat16"),
        (json.dumps({**CONFIG, "torch_dtype": ["bfloat16"]}), "dtype is ['bfloat16'], known: bfloat16"),
        (json.dumps({**CONFIG, "dtype": {"text": "half"}}), "dtype is {'text': 'half'}, known: bfloat16"),
        (json.dumps({**CONFIG, "torch_dtype": "x" * 100_000}), f"dtype is '{'x' * 59}..., known: bfloat16"),
        (json.dumps({**CONFIG, "num_hidden_layers": 10**400}), f"num_hidden_layers is 1{'0' * 59}..., a whole number"),
        (json.dumps({**CONFIG, "kv_lora_rank": 512}), "multi-head latent attention"),
        ("[" * (1 << 20) + "]", "cannot be read (larger than"),
    ],
)
def test_unusable_models_are_named(model, capsys, config, problem):
    (model / "config.json").write_text(config)
    assert problem in refused(capsys, explain(model, "--batch", "2", "--prefix", "128"))


def test_other_errors_of_use(model, capsys, tmp_path):
    none = refused(capsys, explain(tmp_path / "none", "--batch", "2", "--prefix", "128"))
    assert "name a folder with a model in it" in none
    assert "'0' is not a whole number above 0" in refused(capsys, explain(model, "--batch", "0", "--prefix", "128"))
    wrong = ("--batch", "2", "--prefix", "128", "--profile", str(tmp_path / "none.json"))
    assert "none.json: cannot be read (No such file" in refused(capsys, explain(model, *wrong))
    assert "3: 40 query heads" in refused(capsys, explain(model, *wrong[:4], "--tensor-parallel", "3"))
    wide = "--tensor-parallel 20: 8 KV heads cannot be divided by it, nor it by them"
    assert wide in refused(capsys, explain(model, *wrong[:4], "--tensor-parallel", "20"))
    assert "required: COMMAND" in refused(capsys, [])


def test_users_that_are_not_there(model, capsys, monkeypatch):
    step = ("--batch", "2", "--prefix", "128")
    problem = "no user of that name has a home folder"
    nobody = "~nosuchuser/x"
    assert f"--profile: {nobody}: cannot be read ({problem}" in refused(
        capsys, explain(model, *step, "--profile", nobody)
    )
    assert f"--model {nobody}" in refused(capsys, explain(Path(nobody), *step))
    for option in ("--out", "--cells"):
        assert f"{option} {nobody}: cannot be written there ({problem}" in refused(
            capsys, ["calibrate", option, nobody]
        )
    monkeypatch.setenv("VLLM_ASCEND_CASCADE_PROFILE", nobody)
    assert f"VLLM_ASCEND_CASCADE_PROFILE: {nobody}: " in refused(capsys, explain(model, *step))


def test_a_pipe_is_no_configuration(model, capsys):
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    error = refused(capsys, explain(model, "--batch", "2", "--prefix", "128"))
    assert "config.json cannot be read (it is no regular file); name a folder" in error


def test_a_setting_that_cannot_be_read_is_pointed_out(model, capsys, monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_CASCADE_MIN_PREFIX", "abc")
    assert main(explain(model, "--batch", "64", "--prefix", "8192")) == 0
    printed = capsys.readouterr()
    assert "VLLM_ASCEND_CASCADE_MIN_PREFIX=8192: 8192 meets it" in printed.out
    assert printed.err == (
        "warning: VLLM_ASCEND_CASCADE_MIN_PREFIX is 'abc', accepted: an integer from 1 to 2147483648; the default 8192 "
        "counts\n"
    )


def test_a_name_the_terminal_cannot_show(model):
    """In a process of its own: the encoding is that of its standard output."""
    arguments = explain(model, "--batch", "2", "--prefix", "128", "--device", "Ascend\N{EURO SIGN}")
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ascend_split_batch.cascade.commands", *arguments],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert r"device Ascend\u20ac, tier wheel" in done.stdout


def test_shapes_of_models(model):
    assert read_shape(str(model)) == AttentionShape(40, 8, 128, 2, 48)
    assert read_shape(str(model), tensor_parallel=2) == AttentionShape(20, 4, 128, 2, 48)
    nested = {"text_config": {**CONFIG, "head_dim": 64, "dtype": "half"}, "dtype": "float32"}
    (model / "config.json").write_text(json.dumps(nested))
    assert read_shape(str(model)).head_size == 64
    assert read_dtype(str(model)) == "float16"


@pytest.mark.parametrize("checkpoint", ["float32", "float", "bfloat16"])
def test_a_float32_checkpoint_counts_as_what_the_engine_runs_it_in(model, checkpoint):
    (model / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": checkpoint}))
    assert read_dtype(str(model)) == "bfloat16"
    assert read_shape(str(model)).element_bytes == 2


def test_every_subcommand_is_a_file_with_its_help(capsys):
    folder = Path(calibrate.__file__).parent
    assert all((folder / f"{name}.py").is_file() for name in SUBCOMMANDS)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert all(name in capsys.readouterr().out for name in SUBCOMMANDS[:1])


# Calibration, without a device -------------------------------------------------------------------------------------

SHAPE = AttentionShape(9, 3, 64, 2, 30)
TRUE = Coefficients(50, 4, 400, 9, 60, 3.0, 5.0, None, 0.3)


def timings(noise: float = 0.01) -> list[Timing]:
    model = CostModel(TRUE, SHAPE)
    made = []
    for b in (2, 8, 32):
        for p in (128, 1024, 4096):
            for s in (16, 256):
                stock, cascade = model.stock_terms(b, p, b * s).total, model.cascade_terms(b, p, b * s).total
                made.append(Timing(Cell(b, p, b * s, stock, cascade), stock * (1 + noise), plan_us=60, rounds=5))
    return made


def test_a_calibration_makes_a_profile_that_can_be_read():
    made = timings()
    key = Key(profiles.EMULATED_DEVICE, "wheel", "eager")
    profile = calibrate.profile_of(key, [t.cell for t in made], SHAPE, made, ("a test",))
    document = json.loads(json.dumps(profiles.document([profile])))
    jsonschema.validate(document, SCHEMA)
    (read,) = profiles.parse(json.dumps(document), where="FILE", origin="measured")
    assert read == profile
    assert profile.coefficients is not None
    assert profile.coefficients.cascade_step_us == 60
    assert profile.coverage is not None
    assert (profile.coverage.requests.low, profile.coverage.prefix_tokens.high) == (2, 4096)
    assert profile.margin == 0.03


def test_a_noisy_device_gets_a_wider_margin():
    made = timings(noise=0.2)
    profile = calibrate.profile_of(Key("X", "wheel", "eager"), [t.cell for t in made], SHAPE, made, ("a test",))
    assert profile.margin == pytest.approx(0.2)
    assert profile.coefficients is not None
    assert profile.coefficients.cache_mib == 192


def test_a_busy_machine_gives_no_profile():
    made = timings(noise=0.3)
    with pytest.raises(CommandError, match="differs from itself by 30% in half of the cells"):
        calibrate.profile_of(Key("X", "wheel", "eager"), [t.cell for t in made], SHAPE, made, ("a test",))


def test_a_calibration_needs_different_cells():
    made = [timing for timing in timings() if timing.cell.requests == 2]
    with pytest.raises(CommandError, match="same requests"):
        calibrate.profile_of(Key("X", "wheel", "eager"), [t.cell for t in made], SHAPE, made, ("a test",))


def test_calibrate_refuses_before_it_measures(capsys, tmp_path):
    folder = str(tmp_path / "none" / "profile.json")
    assert "cannot be written there" in refused(capsys, ["calibrate", "--out", folder])
    assert "cannot be written there" in refused(capsys, ["calibrate", "--out", str(tmp_path)])
    out = str(tmp_path / "profile.json")
    (tmp_path / "link").symlink_to(out)
    assert "name two files" in refused(capsys, ["calibrate", "--out", out, "--cells", f"{tmp_path}/./profile.json"])
    assert "name two files" in refused(capsys, ["calibrate", "--out", out, "--cells", str(tmp_path / "link")])
    (tmp_path / "link").unlink()
    for name, one in (("batches", "4"), ("prefixes", "128"), ("suffixes", "64,64")):
        error = refused(capsys, ["calibrate", "--out", out, f"--{name}", one])
        assert f"--{name}: {int(one[:3].rstrip(','))} alone tells nothing" in error
    for name, wrong in (
        *(("seconds", text) for text in ("nan", "-1", "0", "inf", "s")),
        *(("most-noise", text) for text in ("nan", "0", "11", "-inf")),
    ):
        assert f"{wrong!r} is not a number from" in refused(capsys, ["calibrate", "--out", out, f"--{name}={wrong}"])
    assert "no usable NPU" in refused(capsys, ["calibrate", "--out", out])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--out", "--cells"])
def test_what_is_no_regular_file_is_not_replaced(capsys, tmp_path, option):
    """A pipe stands for devices too: none is ever to be replaced by a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        error = refused(capsys, ["calibrate", option, str(tmp_path / name)])
        assert f"{name}: cannot be written there (what is there is no regular file); name another file" in error
    # It may come to be there while the device is measured.
    with pytest.raises(CommandError, match=r"pipe: cannot be written \(what is there is no regular file"):
        calibrate._write(tmp_path / "pipe", [])
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_link_stays_one_and_what_it_names_is_written(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "profile.json")
    calibrate._write(calibrate._writable("--out", str(tmp_path / "link")), [1])
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "profile.json").read_text()) == [1]


def test_an_interrupt_leaves_no_half_written_file(tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate._write(tmp_path / "profile.json", [])
    assert not list(tmp_path.iterdir())
