"""The document's table of MLP classes is the installed vLLM's; and the reading of source files says what it should."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tools import mlp_families

MODELS = '''
class Dense:
    def __init__(self):
        self.a, self.b = MergedColumnParallelLinear(), RowParallelLinear()
    def forward(self, x):
        x, _ = self.a(x)
        x = self.act(x)
        x, _ = self.b(x)
        return x

class Scaled(Dense):
    def __init__(self):
        self.a, self.b = ColumnParallelLinear(), RowParallelLinear()
    def forward(self, x):
        return self.b(self.act(self.a(x))) * self.scale

class Attention:
    def __init__(self):
        self.a, self.b = QKVParallelLinear(), RowParallelLinear()
    def forward(self, x):
        return self.b(self.act(self.a(x)))

class Replicated:
    def __init__(self):
        self.a, self.b = ReplicatedLinear(), RowParallelLinear()
    def forward(self, x):
        return self.b(self.act(self.a(x)))
'''


def test_classes_are_told_apart(tmp_path: Path):
    (tmp_path / "family.py").write_text(MODELS)
    text = mlp_families.table(tmp_path)
    assert "| a → act → b | `Dense` (family) |" in text
    assert "| `Scaled` | family | its forward computes self.b(self.act(self.a(x))) * self.scale |" in text
    assert "Attention" not in text
    assert "Replicated" not in text


@pytest.mark.host
def test_the_document_lists_the_installed_vllm(monkeypatch, capsys):
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("no vllm is installed here")
    monkeypatch.setattr(sys, "argv", ["mlp_families", "--check"])
    assert mlp_families.main() == 0, capsys.readouterr().out


def test_another_table_is_noticed(monkeypatch, tmp_path: Path):
    (tmp_path / "family.py").write_text(MODELS)
    monkeypatch.setattr(sys, "argv", ["mlp_families", "--check", "--models", str(tmp_path)])
    assert mlp_families.main() == 1
