"""Names on the hub, the choice of files, and downloads from a hub that is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from ostinato.errors import InputError
from ostinato.llm.hub import HubName, download, hub_name, is_hub_name

FOLDER = [
    "README.md",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "1_Pooling/config.json",
]
GGUF = ["README.md", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-IQ4_XS.gguf", "m.bf16.gguf"]


class Hub:
    """A hub with one model, whose files are written where they are downloaded."""

    def __init__(self, root: Path, files: list[str]) -> None:
        self.root, self.files = root, files
        self.asked: list[tuple[str, str | None]] = []
        self.error: Exception | None = None

    def model_info(self, repository: str, revision: str | None) -> Any:
        if self.error is not None:
            raise self.error
        self.asked.append((repository, revision))
        entries = [SimpleNamespace(rfilename=file) for file in self.files]
        return SimpleNamespace(siblings=entries, sha="abc")

    def fetch(
        self, repository: str, file: str, *, revision: str, cache_dir: Any, tqdm_class: Any
    ) -> str:
        assert (repository, revision) == ("owner/name", "abc")
        if tqdm_class is not None:
            with tqdm_class(total=8, initial=2) as bar:
                bar.update(6)
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345678")
        return str(path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(tmp_path, FOLDER)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: found)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", found.fetch)
    return found


def test_names() -> None:
    assert hub_name("owner/name") == HubName("owner/name")
    assert hub_name("o/n.b-1:Q4_K_M@main") == HubName("o/n.b-1", "Q4_K_M", "main")
    assert hub_name("o/n:a/b.gguf") == HubName("o/n", "a/b.gguf")
    assert hub_name("o/n@refs/pr/1") == HubName("o/n", None, "refs/pr/1")
    for text in ("name", "a/b/c", "../x", "o/..", "o/n:", "o/n@", "/o/n", "", "o n/x", "o/a--b"):
        with pytest.raises(InputError, match="no file, no folder, and no name on the hub"):
            hub_name(text)


def test_paths_that_are_there_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("models/tiny")
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    assert not is_hub_name("models/tiny")
    assert not is_hub_name("model.gguf")


def test_a_folder_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = download("owner/name@v1", progress=lambda *step: seen.append(step))
    assert path == tmp_path
    assert hub.asked == [("owner/name", "v1")]
    assert not (tmp_path / "README.md").exists()
    assert (tmp_path / "1_Pooling" / "config.json").exists()
    assert [step for step in seen if step[0] == "config.json"] == [
        ("config.json", 2, 8),
        ("config.json", 8, 8),
    ]


@pytest.mark.parametrize(
    ("choice", "file"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("q4_k_s", "m-Q4_K_S.gguf"),
        ("IQ4_XS", "m-IQ4_XS.gguf"),
        ("bf16", "m.bf16.gguf"),
        ("m-Q4_K_S.gguf", "m-Q4_K_S.gguf"),
    ],
)
def test_a_quantisation_picks_the_file(hub: Hub, tmp_path: Path, choice: str, file: str) -> None:
    hub.files = GGUF
    assert download(f"owner/name:{choice}") == tmp_path / file


def test_an_only_gguf_file_needs_no_choice(hub: Hub, tmp_path: Path) -> None:
    hub.files = ["a/model.gguf", "mmproj-model.gguf"]
    assert download("owner/name") == tmp_path / "a" / "model.gguf"


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("owner/name", GGUF, r"4 GGUF files; add .* 'owner/name:Q4_K_M'\. There are: IQ4_XS, Q4"),
        ("owner/name", ["README.md"], "neither config.json with safetensors nor a GGUF file"),
        ("owner/name:Q5_K_M", GGUF, "no file or format 'Q5_K_M'; there are: IQ4_XS, Q4_K_M"),
        ("owner/name:Q5_K_M", FOLDER, "no file or format 'Q5_K_M'; it has no GGUF files"),
        ("owner/name:config.json", FOLDER, "is no GGUF file; leave it out"),
        ("owner/name:q4_0", ["a-q4_0.gguf", "b-q4_0.gguf"], "several files of q4_0: a-q4_0"),
        (
            "owner/name:q8_0",
            ["m-q8_0-00001-of-00002.gguf", "m-q8_0-00002-of-00002.gguf"],
            "one of 2 parts of a model; join them",
        ),
    ],
)
def test_no_choice_or_a_wrong_one(hub: Hub, name: str, files: list[str], message: str) -> None:
    hub.files = files
    with pytest.raises(InputError, match=message):
        download(name)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, "asks for consent: give it at https://huggingface.co/owner/name"),
        (errors.RepositoryNotFoundError, "no model 'owner/name' on the hub, or it is private"),
        (errors.RevisionNotFoundError, "has no revision 'v9'"),
        (ConnectionError, "can not be downloaded: gone. Without a connection, offline=True"),
    ],
)
def test_errors_say_what_to_do(hub: Hub, kind: type[Exception], message: str) -> None:
    error = kind.__new__(kind)
    error.args = ("gone",)
    hub.error = error
    with pytest.raises(InputError, match=message):
        download("owner/name@v9")


def test_offline(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="was not downloaded before; load it once without offline"):
        download("owner/name", offline=True, cache=tmp_path / "none")
    for file in GGUF:
        (tmp_path / file).write_bytes(b"")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    assert download("owner/name:Q4_K_M", offline=True) == tmp_path / "m-Q4_K_M.gguf"
    assert not hub.asked


def test_offline_finds_a_folder_of_downloads_as_the_library_has_it(tmp_path: Path) -> None:
    commit = "0123456789" * 4
    store = tmp_path / "models--owner--name"
    (store / "refs").mkdir(parents=True)
    (store / "refs" / "main").write_text(commit)
    (store / "blobs").mkdir()
    for file in FOLDER:
        link = store / "snapshots" / commit / file
        link.parent.mkdir(parents=True, exist_ok=True)
        blob = store / "blobs" / file.replace("/", "-")
        blob.write_bytes(b"{}")
        link.symlink_to(blob)
    for name in ("owner/name", "owner/name@main", f"owner/name@{commit}"):
        found = download(name, offline=True, cache=tmp_path)
        assert found == store / "snapshots" / commit
        assert (found / "1_Pooling" / "config.json").read_bytes() == b"{}"
    for name in ("owner/name@v2", "owner/other"):
        with pytest.raises(InputError, match="was not downloaded before"):
            download(name, offline=True, cache=tmp_path)
    with pytest.raises(InputError, match="no file or format 'Q8_0'; it has no GGUF files"):
        download("owner/name:Q8_0", offline=True, cache=tmp_path)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        InputError, match=r"needs the package huggingface_hub, .*: pip install 'ostinato\[llm\]'"
    ):
        download("owner/name")
