"""Byte-level BPE in the `tiktoken.model` format, with K3's 256 special ids behind the merges."""

import base64

import regex

BASE_TOKENS = 1792  # 256 bytes + 1,536 merges; with the 256 specials a vocabulary of 2,048
NO_RANK = 1 << 30
MEMO_WORDS = 200_000  # distinct words kept per process; random numbers would fill memory otherwise

# Offsets of the named specials behind the last merge, in K3's order. All others are reserved.
SPECIAL_OFFSETS = {
    "[BOS]": 0, "[EOS]": 1, "<|end_of_msg|>": 2, "<|open|>": 3, "<|close|>": 4, "<|sep|>": 5,
    "[start_header_id]": 6, "[end_header_id]": 7, "[EOT]": 9, "<|media_begin|>": 18,
    "<|media_content|>": 19, "<|media_end|>": 20, "<|media_pad|>": 21, "<osagent_mode>": 65,
    "[UNK]": 254, "[PAD]": 255,
}

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT_PATTERN = "|".join([
    r"[\p{Han}]+",
    _LEAD + _UPPER + "*" + _LOWER + "+" + _ENDING,
    _LEAD + _UPPER + "+" + _LOWER + "*" + _ENDING,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
SPLITTER = regex.compile(SPLIT_PATTERN, regex.V1)


def special_ids(base_tokens):
    return {name: base_tokens + offset for name, offset in SPECIAL_OFFSETS.items()}


def write_tokens(path, tokens):
    """Writes one `base64 rank` line a token."""
    with open(path, "wb") as file:
        for rank, token in enumerate(tokens):
            file.write(base64.b64encode(token) + b" %d\n" % rank)


class Tokenizer:
    """Encodes user text (specials are never recognised in it) and decodes ids."""

    def __init__(self, path):
        self.ranks = {}
        with open(path, "rb") as file:
            for line in file:
                token, rank = line.split()
                self.ranks[base64.b64decode(token)] = int(rank)
        self.specials = special_ids(len(self.ranks))
        self._bytes = {rank: token for token, rank in self.ranks.items()}
        self._special_names = {number: name for name, number in self.specials.items()}
        self._memo = {}

    def encode(self, text):
        ids = []
        for word in SPLITTER.findall(text):
            ids += self._encode_word(word)
        return ids

    def _encode_word(self, word):
        ids = self._memo.get(word)
        if ids is not None:
            return ids
        parts = [bytes([byte]) for byte in word.encode()]
        while len(parts) > 1:
            pairs = range(len(parts) - 1)
            rank, at = min((self.ranks.get(parts[i] + parts[i + 1], NO_RANK), i) for i in pairs)
            if rank == NO_RANK:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        ids = [self.ranks[part] for part in parts]
        if len(self._memo) < MEMO_WORDS:
            self._memo[word] = ids
        return ids

    def decode(self, ids):
        """Text of `ids`; specials are shown by name."""
        text, pending = "", b""
        for number in ids:
            if number in self._bytes:
                pending += self._bytes[number]
                continue
            name = self._special_names.get(number, "<|reserved_token_%d|>" % number)
            text += pending.decode("utf-8", "replace") + name
            pending = b""
        return text + pending.decode("utf-8", "replace")
