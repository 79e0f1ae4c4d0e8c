"""The command line: exit codes, messages, help; commands that start processes are in tests/e2e/."""

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest

from segue.actors.checkpoint_store import CheckpointStore
from segue.actors.cli.job_list import JobList
from segue.actors.cli.main import COMMANDS, main
from segue.actors.errors import Interrupted
from segue.actors.run_folder import RunFolder, write_json
from segue.conf.load import load_config


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    for name, about in COMMANDS.items():
        assert f"{name} " in text and about in text


def test_what_the_system_refuses_a_command_is_one_line_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["describe"]) == 2
    error = "[Errno 2] No such file or directory"
    assert (
        capsys.readouterr().err == f"segue: describe could not go on: {error}; mend that, then give the command again\n"
    )
    with pytest.raises(FileNotFoundError):
        main(["describe", "--debug"])
    monkeypatch.chdir(tmp_path)
    for command in ("describe", "--version", "--help"):
        with Path("/dev/full").open("w") as full:
            monkeypatch.setattr("sys.stdout", full)
            assert main([command]) == 2
        message = f"segue: {command} could not go on: [Errno 28] No space left on device; "
        assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("command", [["describe"], ["--help"], ["train", "--cfg", "job"], ["train", "--help"]])
def test_a_reader_that_goes_away_has_what_it_wanted(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        assert main(command) == 0
    assert capsys.readouterr().err == ""


def test_where_nobody_can_be_told_the_code_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stderr", Full())
    assert main(["trian"]) == 2


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
        (
            ["pretrain", "run.init_from=null", "env.kwargs.level=99", "run.dir=new"],
            "env.id=sql cannot be built: ValueError: level must be one of 1, 2, 3, got 99",
        ),
        (
            ["train", "run.init_from=null", "rollout.max_episode_tokens=1000000", "rollout.state_budget_mb=100"],
            "rollout.state_budget_mb must be at least 257, for one episode of rollout.max_episode_tokens=1000000, "
            "got 100",
        ),
        (
            ["train", "tokenizer=bytes"],
            "tokenizer must be segue_bpe_1k while run.init_from is warm_start, got bytes; run.init_from=null begins "
            "with random weights",
        ),
        # a byte that is no UTF-8, as Python reads it from a command line
        (["train", 'run.dir="\udcff"'], "override must be UTF-8 text, got 'run.dir=\"\\udcff\"'"),
        (["rollout", "--episodes", "0"], "--episodes must be at least 1, got 0"),
        (["rollout", "--episodes", "-1"], "--episodes must be at least 1, got -1"),
        (
            ["export", "nowhere", "there"],
            "run folder must be the folder of a run, got {cwd}/nowhere, and there is no such folder; runs lie in runs/ "
            "or where their run.dir was",
        ),
        (["export", "unfinished", "there"], "run folder must hold a run, got {cwd}/unfinished"),
        (
            ["pretrain", "--steps", "5"],
            "option must be one of --help, --debug, --cfg, --multirun, got --steps; write train.steps=5 or "
            "pretrain.steps=5",
        ),
        (
            ["describe", "--model=k3"],
            "option must be one of --help, --debug, --cfg, --json, got --model; write model=k3",
        ),
        (
            ["describe", "--env.kwargs.level", "seed=3"],
            "option must be one of --help, --debug, --cfg, --json, got --env.kwargs.level; write env.kwargs.level=…",
        ),
        (
            ["describe", "--frobnicate", "--json"],
            "option must be one of --help, --debug, --cfg, --json, got --frobnicate; a key of docs/config.md is given "
            "as key=value",
        ),
        (
            ["import", "nowhere", "there"],
            "nowhere/config.json must hold the JSON object that describes a model: No such file or directory",
        ),
        *(
            (
                [command, "run.dir=unfinished"],
                "run.dir must hold a finished run with export/, got {cwd}/unfinished; "
                "`segue export` writes one from a checkpoint, for run.init_from",
            )
            for command in ("eval", "rollout")
        ),
        *(
            (
                [command, "run.dir=stripped"],
                "run.dir must hold config.yaml beside export/, got {cwd}/stripped without; put it back, or give "
                "run.init_from={cwd}/stripped/export and the rest of the configuration",
            )
            for command in ("eval", "rollout")
        ),
        *(
            (
                [command, "run.dir=unfinishd"],
                "run.dir must be the folder of a run, got {cwd}/unfinishd, and there is no such folder; nearest: "
                "unfinished",
            )
            for command in ("eval", "rollout")
        ),
        (["eval", "--out=unfinished"], "--out must not exist, got {cwd}/unfinished"),
        (
            ["eval", "--out=~nobody_there/x"],
            "--out must begin with the home of a user that there is, got ~nobody_there/x",
        ),
        (
            ["describe", "model.num_hidden_layers=1000000"],
            "model.num_hidden_layers must be at most 1000, got 1000000",
        ),
        (
            ["train", f"run.dir={'x' * 300}"],
            f"run.dir must be a path that can be looked at, got {{cwd}}/{'x' * 300}/config.yaml: File name too long",
        ),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch
) -> None:
    from segue.model.tokenizer.load import load_tokenizer

    monkeypatch.chdir(tmp_path)
    (tmp_path / "stripped/export").mkdir(parents=True)
    (tmp_path / "unfinished").mkdir()
    assert main(arguments) == 2
    expected = message.replace("{cwd}", str(tmp_path)).replace("{bytes}", str(load_tokenizer("bytes").vocab_size))
    assert capsys.readouterr().err == f"segue: {expected}\n"
    assert not (tmp_path / "runs").exists()


def test_text_that_is_none_is_told_before_anything_starts(capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("segue.actors.run._check_environment", lambda *_: None)
    # no actor, no Ray
    monkeypatch.setattr("segue.actors.run.supervised", None)
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").write_bytes(b"text\xff")
    stage = "{length_mix:{256:1.0},text_share:0.5,tokens_per_step:512,max_steps:2,eval_every:1}"
    arguments = [f"pretrain.curriculum.stages=[{stage}]", "pretrain.curriculum.text=*.txt", "run.dir=new"]
    assert main(["pretrain", "experiment=curriculum", *arguments]) == 2
    expected = f"pretrain.curriculum.text must find UTF-8 text, got {tmp_path}/b.txt: invalid start byte"
    assert capsys.readouterr().err == f"segue: {expected}\n"
    assert not (tmp_path / "new").exists()


HEADER = "defaults:\n- base_config\n- _self_\n"


@pytest.mark.parametrize("text", ["a: [", "just text", "\xff", HEADER + "seed: x", HEADER + "seed: ["])
def test_a_damaged_stored_configuration_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_bytes(text.encode("latin-1"))
    for arguments in (["train", f"run.dir={tmp_path}"], ["export", str(tmp_path), str(tmp_path / "out")]):
        assert main(arguments) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"segue: {tmp_path}/config.yaml must be the configuration of a run, got ")
        assert message.count("\n") == 1


UNDEMONSTRATED = """
from gymnasium import register
from segue.envs.tool_env import Task, ToolEnv

class Silent(ToolEnv):
    def begin(self, seed, options):
        return Task(user="hello")

register("Silent-v0", entry_point=Silent)
"""


def test_imitation_of_an_environment_without_a_demonstrator_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "silent.py").write_text(UNDEMONSTRATED)
    overrides = ["env.id=silent:Silent-v0", "run.init_from=null", "run.dir=new"]
    for arguments in (["pretrain", *overrides], ["rollout", "--demonstrator", *overrides[:2]]):
        assert main(arguments) == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert message.startswith("segue: env must have a demonstrator that plays, got silent:Silent-v0: ")
        assert "Silent has no demonstrator" in message
    assert not (tmp_path / "new").exists()


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"segue {metadata.version('segue')}\n"


def test_debug_shows_where_an_error_came_from() -> None:
    from segue.conf.errors import ConfigError

    with pytest.raises(ConfigError):
        main(["train", "train.stepz=3", "--debug"])


def test_options_and_overrides_may_be_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "train.steps=7", "--cfg", "job", "seed=5"]) == 0
    text = capsys.readouterr().out
    assert "seed: 5" in text and "steps: 7" in text


@dataclass
class Jobs:
    """Stands in for `subprocess.Popen`: jobs that end with what `endings` says, in turn."""

    endings: list[list[int | signal.Signals]]
    """Of each job, what this process is told while it runs, and at last its exit code."""
    commands: list[list[str]] = field(default_factory=list)
    num_told: int = 0
    """Times that a job was told to end by SIGTERM."""

    def __call__(self, command: list[str]) -> "Jobs":
        self.commands.append(command[5:])
        return self

    def wait(self) -> int:
        *told, code = self.endings[len(self.commands) - 1]
        for number in told:
            os.kill(os.getpid(), number)
        return code

    def terminate(self) -> None:
        self.num_told += 1


def test_jobs_that_write_to_run_dir_get_folders_of_their_own_and_eval_keeps_the_one_that_it_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = Jobs([[0], [1]])
    monkeypatch.setattr(subprocess, "Popen", jobs)
    assert main(["train", "-m", "seed=1,2", "run.dir=sweep"]) == 1
    assert jobs.commands == [["seed=1", f"run.dir={tmp_path}/sweep/0"], ["seed=2", f"run.dir={tmp_path}/sweep/1"]]
    # those that are given one by one stay, to go on with several runs
    jobs = Jobs([[0], [0]])
    monkeypatch.setattr(subprocess, "Popen", jobs)
    assert main(["train", "-m", "train.steps=9", "run.dir=a,b"]) == 0
    assert jobs.commands == [["train.steps=9", "run.dir=a"], ["train.steps=9", "run.dir=b"]]
    # what the grammar would read as something else stays what it was
    folder = Path("a,b (é) [c]=d")
    jobs = Jobs([[0], [0]])
    monkeypatch.setattr(subprocess, "Popen", jobs)
    assert main(["train", "-m", "seed=1,2", f'run.dir="{folder}"']) == 0
    assert [load_config(job).run.dir for job in jobs.commands] == [str(tmp_path / folder / n) for n in "01"]
    jobs = Jobs([[0], [0], [0], [0]])
    monkeypatch.setattr(subprocess, "Popen", jobs)
    main(["eval", "-m", "eval.temperature=0.5,1", "run.dir=a,b", "--out=measured"])
    read = [[f"eval.temperature={t}", f"run.dir={d}"] for t in ("0.5", "1") for d in "ab"]
    assert jobs.commands == [[f"--out={tmp_path}/measured/{number}", *job] for number, job in enumerate(read)]
    # no shell says what `~` is behind `--out=`
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    jobs = Jobs([[0]])
    monkeypatch.setattr(subprocess, "Popen", jobs)
    main(["eval", "-m", "run.dir=a", "--out=~/measured"])
    assert jobs.commands == [[f"--out={tmp_path}/home/measured/0", "run.dir=a"]]


@pytest.mark.parametrize(
    ("told", "num_told"),
    [
        # the terminal tells the job as well
        ([signal.SIGINT, signal.SIGINT], 0),
        ([signal.SIGHUP], 0),
        ([signal.SIGTERM], 1),
        ([signal.SIGTERM, signal.SIGTERM], 2),
    ],
)
def test_what_ends_a_list_of_jobs_ends_the_job_at_hand_and_begins_no_other(
    told: list[signal.Signals], num_told: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)]
    jobs = Jobs([[0], [*told, 130], [0]])
    monkeypatch.setattr(subprocess, "Popen", jobs)
    assert main(["train", "-m", "seed=1,2,3", "run.dir=sweep"]) == 130
    assert [command[0] for command in jobs.commands] == ["seed=1", "seed=2"]
    assert jobs.num_told == num_told
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["seed=1,2", "train.max_uses=1,2", "run.dir=sweep"],
            "train.max_uses must be 1 while train.max_staleness is 0, got 2; set train.max_staleness=1, in segue train "
            "seed=1 train.max_uses=2 run.dir={cwd}/sweep/1",
        ),
        (
            ["seed=1,2", "train.stepz=1,2", "run.dir=sweep"],
            "train.stepz must be a known key, got an unknown one; nearest: train.steps, in segue train seed=1 "
            "train.stepz=1 run.dir={cwd}/sweep/0",
        ),
        (
            ["seed=1,2", "run.dir=a,b"],
            "run.dir must be another folder for each job, or one for all, got the same for several",
        ),
        (
            ["seed=range(0,1000000000)"],
            "--multirun must come to at most 1000 jobs, got more with seed=range(0,1000000000)",
        ),
        (
            ["seed=range(0,40)", "model.vocab_size=range(1000,1040)"],
            "--multirun must come to at most 1000 jobs, got more with model.vocab_size=range(1000,1040)",
        ),
    ],
)
def test_a_list_of_jobs_of_which_one_cannot_run_begins_none(
    overrides: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = Jobs([])
    monkeypatch.setattr(subprocess, "Popen", jobs)
    assert main(["train", "-m", *overrides]) == 2
    assert capsys.readouterr().err == f"segue: {message.replace('{cwd}', str(tmp_path))}\n"
    assert jobs.commands == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "--frobnicate", "a", "b"], "segue export: error: unrecognized arguments: --frobnicate"),
        (["export", "a"], "segue export: error: the following arguments are required: target"),
        (["export", "a", "b", "--step", "x"], "segue export: error: argument --step: invalid int value: 'x'"),
    ],
)
def test_an_option_that_there_is_not_is_named_beneath_those_that_there_are(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    usage, *_, last = capsys.readouterr().err.splitlines()
    assert usage.startswith(f"usage: segue {arguments[0]} [-h]")
    assert last == message


def test_the_configurations_of_a_list_of_jobs_are_printed_and_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Jobs([]))
    assert main(["train", "-m", "seed=1,2", "--cfg", "job"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("seed:")] == ["seed: 1", "seed: 2"]
    assert [line.partition(" run.dir")[0] for line in lines if line.startswith("# ")] == [
        "# segue train seed=1",
        "# segue train seed=2",
    ]


def test_a_signal_between_two_jobs_begins_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs([[0]])
    monkeypatch.setattr(subprocess, "Popen", jobs)
    with JobList() as job_list:
        job_list.run(["python"])
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            job_list.run(["python"])
    assert len(jobs.commands) == 1


def test_a_list_of_jobs_ends_with_a_table_of_what_each_came_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    # the second fails before it has a folder, the third is ended by hand
    jobs = Jobs([[0], [2], [signal.SIGTERM, 130]])
    monkeypatch.setattr(subprocess, "Popen", jobs)
    after = {"sampled": {"success": 0.5}, "greedy": {"success": None}}
    (tmp_path / "sweep/0").mkdir(parents=True)
    write_json(tmp_path / "sweep/0/summary.json", {"evaluations": {"after": after}})
    assert main(["train", "-m", "train.steps=3", "seed=1,20,3", "run.dir=sweep"]) == 130
    begun, _, table = capsys.readouterr().out.partition("\n\n")
    assert begun.endswith("\ninterrupted in job 3 of 3; the same command goes on")
    assert table.splitlines() == [
        "job  overrides  ended     sampled success  greedy success  folder",
        f"1    seed=1     finished  0.500            –               {tmp_path}/sweep/0",
        f"2    seed=20    code 2    –                –               {tmp_path}/sweep/1",
    ]


TELLS_ITS_PARENT = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
os.kill(os.getppid(), signal.SIGTERM)
signal.pause()
"""


def test_sigterm_is_passed_on_to_a_running_job() -> None:
    with JobList() as job_list, pytest.raises(Interrupted):
        job_list.run([sys.executable, "-c", TELLS_ITS_PARENT])


def test_export_refuses_a_damaged_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.begin(load_config([]), {"command": "train", "restored_steps": [0]})
    store = CheckpointStore(folder.checkpoints, keep_last=1)
    store.save(3, {}, lambda learner: learner.joinpath("rank-0.safetensors").write_bytes(b"weights") and None)
    store.path(3).joinpath("learner/rank-0.safetensors").write_bytes(b"damaged")
    assert main(["export", str(folder.path), str(tmp_path / "out")]) == 2
    message = "checkpoint must be whole, got step-00000003: learner/rank-0.safetensors missing or damaged"
    assert capsys.readouterr().err == f"segue: {message}\n"
    assert not (tmp_path / "out").exists()


def test_export_refuses_what_no_learner_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.begin(load_config([]), {"command": "eval", "restored_steps": [0]})
    assert main(["export", str(folder.path), str(tmp_path / "out")]) == 2
    message = f"run folder must hold a run of segue train or pretrain, got {folder.path}, of segue eval"
    assert capsys.readouterr().err == f"segue: {message}\n"


def test_export_leaves_a_target_that_is_there_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (tmp_path / "out").mkdir()
    folder.begin(load_config([]), {"command": "train", "restored_steps": [0]})
    assert main(["export", str(folder.path), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"segue: target must not exist, got {tmp_path}/out\n"


def test_describe_counts_a_critic_beside_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "algorithm=ppo", "--json"]) == 0
    with_critic = json.loads(capsys.readouterr().out)["parameters"]
    assert main(["describe", "--json"]) == 0
    without = json.loads(capsys.readouterr().out)["parameters"]
    # a weight for each of tiny's 96 numbers, and a bias
    assert with_critic.pop("critic") == 97
    assert with_critic == without


def test_describe_prints_the_published_sizes_of_k3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "model=k3", "--json"]) == 0
    parameters = json.loads(capsys.readouterr().out)["parameters"]
    # 2.7795e12 and 1.0419e11, as published
    assert f"{parameters['total']:.4e}" == "2.7795e+12"
    assert f"{parameters['active']:.4e}" == "1.0419e+11"
    assert main(["describe", "model=k3"]) == 0
    assert "2.7795e+12" in capsys.readouterr().out


def test_describe_says_what_a_run_computes_on(capsys: pytest.CaptureFixture[str]) -> None:
    counts = ["cluster.rollout_actors=3", "cluster.learner_ranks=1"]
    on_cpu = ["cluster.rollout_resources={GPU: 0}", "cluster.learner_resources={GPU: 0}"]
    assert main(["describe", "--json", *counts, *on_cpu]) == 0
    expected = {"rollout": "3 actors on cpu", "learner": "1 rank on cpu"}
    assert json.loads(capsys.readouterr().out)["devices"] == expected
    assert main(["describe", *counts, *on_cpu]) == 0
    assert "3 actors on cpu" in capsys.readouterr().out


def test_help_lists_groups_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert "model=k3|" in text and "algorithm=cispo|dapo|dr_grpo|grpo|gspo|k2_5|ppo|reinforce_pp|rloo|turn_ppo" in text
    assert "segue train seed=1" in text and "--multirun" in text


def test_a_run_that_has_a_checkpoint_needs_its_initial_model_no_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = load_config(["train.steps=3"])
    config.run.init_from = str(tmp_path / "gone")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.begin(config, {"command": "train", "restored_steps": [0]})
    assert main(["train", f"run.dir={folder.path}"]) == 2
    assert "run.init_from must be an exported model" in capsys.readouterr().err
    CheckpointStore(folder.checkpoints, keep_last=1).save(
        3, {}, lambda learner: learner.joinpath("rank-0.safetensors").write_bytes(b"weights") and None
    )
    write_json(folder.summary, {"status": "finished", "steps": 3})
    assert main(["train", f"run.dir={folder.path}"]) == 0
    assert f"{folder.path} holds a finished run of 3 steps" in capsys.readouterr().out
