"""The command line: exit codes, messages, help; commands that start processes are in tests/e2e/."""

import json

import pytest

from segue.actors.cli.main import COMMANDS, main


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    for name, about in COMMANDS.items():
        assert f"{name} " in text and about in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["trian"],
            f"command must be one of {', '.join(COMMANDS)}, got 'trian'; nearest: train",
        ),
        (["train", "train.stepz=3"], "train.stepz must be a known key, got an unknown one; nearest: train.steps"),
        (
            ["train", "run.init_from=nowhere"],
            "run.init_from must be an exported model, warm_start or null, got {cwd}/nowhere; "
            "`segue pretrain` makes one",
        ),
        (
            ["train", "run.init_from=null", "model.vocab_size=64", "tokenizer=bytes"],
            "model.vocab_size must be at least the {bytes} ids of tokenizer bytes, got 64",
        ),
        (
            ["rollout", "run.init_from=null"],
            "run.init_from must name an exported model where nothing is trained, got null",
        ),
        (["export", "nowhere", "there"], "run folder must hold a run, got {cwd}/nowhere"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch
) -> None:
    from segue.model.tokenizer.load import load_tokenizer

    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    expected = message.replace("{cwd}", str(tmp_path)).replace("{bytes}", str(load_tokenizer("bytes").vocab_size))
    assert capsys.readouterr().err == f"segue: {expected}\n"
    assert not (tmp_path / "runs").exists()


def test_debug_shows_where_an_error_came_from() -> None:
    from segue.conf.errors import ConfigError

    with pytest.raises(ConfigError):
        main(["train", "train.stepz=3", "--debug"])


def test_options_and_overrides_may_be_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "train.steps=7", "--cfg", "job", "seed=5"]) == 0
    text = capsys.readouterr().out
    assert "seed: 5" in text and "steps: 7" in text


def test_describe_prints_the_published_sizes_of_k3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "model=k3", "--json"]) == 0
    parameters = json.loads(capsys.readouterr().out)["parameters"]
    # 2.7795e12 and 1.0419e11, as published
    assert f"{parameters['total']:.4e}" == "2.7795e+12"
    assert f"{parameters['active']:.4e}" == "1.0419e+11"
    assert main(["describe", "model=k3"]) == 0
    assert "2.7795e+12" in capsys.readouterr().out


def test_help_lists_groups_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "model=k3|" in text and "segue train seed=1" in text and "--multirun" in text
