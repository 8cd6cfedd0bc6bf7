"""Models of the Hugging Face hub: names, the files that a model needs, downloads.

``huggingface_hub`` does the downloads and keeps the files; it is imported with the first name.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import InputError
from ostinato.llm.packages import required
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["HubName", "download", "hub_name", "is_hub_name"]

_NAME: Final = re.compile(
    r"(?P<repository>[\w][\w.-]{0,95}/[\w][\w.-]{0,95})(:(?P<choice>[^:@]+))?(@(?P<revision>[^@]+))?"
)

#: Files of a folder that a model is read from.
_FOLDER_FILES: Final = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "*.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
)

#: One of several GGUF files that only together are a model.
_SPLIT: Final = re.compile(r"-\d{5}-of-(?P<count>\d{5})\.gguf$")

#: The part of a file's name that says how its weights are quantised.
_QUANTISATION: Final = re.compile(
    r"(?i)(?<![a-z0-9])(?:ud-)?(i?q\d(?:_[a-z0-9]+)*|bf16|f16|f32|mxfp4(?:_moe)?|tq\d_\d)"
    r"(?![a-z0-9])"
)


@dataclass(frozen=True)
class HubName:
    """A model on the hub.

    Attributes:
        repository: ``owner/name``.
        choice: a file, or the quantisation of a GGUF file; ``None``: the model's folder, or its
            only GGUF file.
        revision: a branch, a tag or a commit; ``None``: the newest.
    """

    repository: str
    choice: str | None = None
    revision: str | None = None


def is_hub_name(text: str) -> bool:
    """Whether a text has the form of a name on the hub, and is no path of a file or a folder."""
    return _NAME.fullmatch(text) is not None and not Path(text).exists()


def hub_name(text: str) -> HubName:
    """A name on the hub: ``owner/name``, then ``:file-or-quantisation``, then ``@revision``.

    Raises:
        InputError: of another form.
    """
    found = _NAME.fullmatch(text)
    if found is None or ".." in text or "--" in found["repository"]:
        raise InputError(
            f"{text!r:.120} is no file, no folder, and no name on the hub such as "
            "'owner/name', 'owner/name:Q4_K_M' or 'owner/name:model.gguf@main'"
        )
    return HubName(found["repository"], found["choice"], found["revision"])


def download(
    name: str | HubName,
    *,
    offline: bool = False,
    cache: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """The folder or the GGUF file of a model, downloaded if it is not here yet.

    Args:
        name: of the model.
        offline: take what was downloaded before, and ask nothing of the hub.
        cache: folder of downloads; ``None``: that of ``huggingface_hub``.
        progress: called with the name of a file, its bytes that are here, and all of its bytes.

    Raises:
        InputError: no such model, file or quantisation, no permission, no connection, or nothing
            of it is here; the message says what to do.
    """
    wanted = hub_name(name) if isinstance(name, str) else name
    hub = required("huggingface_hub", f"{wanted.repository!r}, a name on the hub,")
    if offline:
        return _local(hub, wanted, cache)
    try:
        info = hub.HfApi().model_info(wanted.repository, revision=wanted.revision)
        files = sorted(entry.rfilename for entry in info.siblings or ())
        chosen = _chosen(wanted, files)
        paths = [
            Path(
                hub.hf_hub_download(
                    wanted.repository,
                    file,
                    revision=info.sha,
                    cache_dir=cache,
                    tqdm_class=None if progress is None else _bar(file, progress),
                )
            )
            for file in chosen
        ]
    except InputError:
        raise
    except Exception as error:  # of the library, of its HTTP client, of the file system
        raise _problem(hub, wanted, error) from error
    return _root(chosen, paths)


def _local(hub: Any, wanted: HubName, cache: Path | None) -> Path:
    """The model in the folder of downloads."""
    missing = InputError(
        f"{wanted.repository!r} was not downloaded before; load it once without offline=True"
    )
    try:
        folder = Path(
            hub.snapshot_download(
                wanted.repository,
                revision=wanted.revision,
                cache_dir=cache,
                local_files_only=True,
                allow_patterns=[],
            )
        )
    except Exception:
        raise missing from None
    files = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    if not files:
        raise missing
    chosen = _chosen(wanted, files)
    return _root(chosen, [folder / file for file in chosen])


def _root(files: Sequence[str], paths: Sequence[Path]) -> Path:
    """The GGUF file, or the folder with all files."""
    if len(files) == 1 and files[0].endswith(".gguf"):
        return paths[0]
    return paths[0].parents[files[0].count("/")]


# -- the choice of files ---------------------------------------------------------------------------


def _chosen(wanted: HubName, files: Sequence[str]) -> list[str]:
    """The files of a model.

    Raises:
        InputError: no such file or quantisation, several of them, or a part of one.
    """
    gguf = [file for file in files if file.endswith(".gguf") and "mmproj" not in file.lower()]
    if wanted.choice is None:
        folder = [file for file in files if any(fnmatch(file, kind) for kind in _FOLDER_FILES)]
        if "config.json" in folder and any(file.endswith(".safetensors") for file in folder):
            return folder
        if len(gguf) == 1:
            return _whole(gguf[0])
        if gguf:
            raise InputError(
                f"{wanted.repository!r} has {len(gguf)} GGUF files; add the one to load, such as "
                f"'{wanted.repository}:{_suggestion(gguf)}'. There are: {_list(gguf)}"
            )
        raise InputError(
            f"{wanted.repository!r} has neither config.json with safetensors nor a GGUF file"
        )
    if wanted.choice in files:
        if not wanted.choice.endswith(".gguf"):
            raise InputError(f"{wanted.choice!r} is no GGUF file; leave it out to load the folder")
        return _whole(wanted.choice)
    found = [file for file in gguf if wanted.choice.lower() in _quantisations(file)]
    if len(found) == 1:
        return _whole(found[0])
    if not found:
        there = f"there are: {_list(gguf)}" if gguf else "it has no GGUF files"
        raise InputError(f"{wanted.repository!r} has no file or format {wanted.choice!r}; {there}")
    if _SPLIT.search(found[0]):
        return _whole(found[0])
    raise InputError(
        f"{wanted.repository!r} has several files of {wanted.choice}: {', '.join(found)}. Name one"
    )


def _whole(file: str) -> list[str]:
    """The file, if it is a model of its own.

    Raises:
        InputError: it is one of several parts.
    """
    part = _SPLIT.search(file)
    if part is not None and int(part["count"]) > 1:
        raise InputError(
            f"{file!r} is one of {int(part['count'])} parts of a model; join them with "
            "llama-gguf-split --merge, and load the result"
        )
    return [file]


def _quantisations(file: str) -> set[str]:
    """The formats that a file's name mentions, in small letters."""
    return {found[1].lower() for found in _QUANTISATION.finditer(file)}


def _suggestion(files: Sequence[str]) -> str:
    """A format that fits most machines, if there is one."""
    known = [name for file in files for name in sorted(_quantisations(file))]
    for name in ("q4_k_m", "q4_0", "q8_0"):
        if name in known:
            return name.upper()
    return known[0].upper() if known else files[0]


def _list(files: Sequence[str]) -> str:
    named = [name.upper() for file in files for name in sorted(_quantisations(file))]
    return ", ".join(dict.fromkeys(named)) or ", ".join(files)


# -- downloads -------------------------------------------------------------------------------------


def _bar(file: str, progress: Callable[[str, int, int], None]) -> Any:
    """A class of progress bars that reports instead of drawing."""
    from tqdm import tqdm

    base: Any = tqdm

    class Bar(base):  # type: ignore[misc]
        """The progress of one file."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._done = int(options.get("initial") or 0)
            self._all = int(options.get("total") or 0)
            super().__init__(*args, **{**options, "disable": True})
            progress(file, self._done, self._all)

        def update(self, n: float | None = 1) -> None:
            self._done += int(n or 0)
            progress(file, self._done, max(self._all, self._done))

    return Bar


def _problem(hub: Any, wanted: HubName, error: Exception) -> InputError:
    """The error for one of the library."""
    name, known = wanted.repository, hub.errors
    for kind, message in _messages(wanted):
        if isinstance(error, getattr(known, kind)):
            return InputError(message)
    return InputError(
        f"{name!r} can not be downloaded: {error!s:.300}. Without a connection, offline=True takes "
        "what was downloaded before"
    )


def _messages(wanted: HubName) -> Iterator[tuple[str, str]]:
    """Names of the library's errors, the most special first, and what to do."""
    name = wanted.repository
    yield (
        "GatedRepoError",
        f"{name!r} asks for consent: give it at https://huggingface.co/{name}, then log in with "
        "`hf auth login`",
    )
    yield (
        "RepositoryNotFoundError",
        f"there is no model {name!r} on the hub, or it is private: `hf auth login` logs in",
    )
    yield "RevisionNotFoundError", f"{name!r} has no revision {wanted.revision!r}"
    yield "EntryNotFoundError", f"{name!r} has no longer the file that it lists; try again"
