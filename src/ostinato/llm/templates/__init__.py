"""Chat templates, which come with models and are run in a sandbox with limits.

- ``messages``: the messages of a chat, checked.
- ``sandbox``: Jinja with bounds on time and sizes.
- ``chat_template``: the text and the token ids of a chat.
- ``files``: templates of folders and of GGUF files.

Jinja is imported with this package.
"""

from __future__ import annotations

from ostinato.llm.packages import required

required("jinja2", "a chat template")

from ostinato.llm.templates.chat_template import ChatTemplate  # noqa: E402
from ostinato.llm.templates.files import template_from_folder, template_from_gguf  # noqa: E402
from ostinato.llm.templates.messages import Message, Tool  # noqa: E402

__all__ = ["ChatTemplate", "Message", "Tool", "template_from_folder", "template_from_gguf"]
