"""Write Harmony's vocabulary, which oss-harmony carries, as the file that openai-harmony fetches.

`python write_vocabulary.py FOLDER/o200k_base.tiktoken`; openai-harmony reads it from the folder in
TIKTOKEN_ENCODINGS_BASE and checks its hash.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from pathlib import Path

from openai_harmony import (  # type: ignore[import-untyped]
    HarmonyEncodingName,
    load_harmony_encoding,
)

from antiphon.adapters.formats.harmony.encoding import FIRST_SPECIAL

# Only the encoder's core gives a token's bytes; its public side joins and decodes them.
core = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)._inner
with Path(sys.argv[1]).open("wb") as file:
    for token in range(FIRST_SPECIAL):
        file.write(b"%s %d\n" % (b64encode(core.decode_bytes([token])), token))
