"""Draw the jobs of each level, with plausible commands that do not do them.

No command that is the same for all jobs of a level does more than 1 of 12, whatever it reads in the
folder: what tells the right file, word or name stands in the question alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from grpo_core import TaskKey, held_out
from grpo_env_terminal.jobs import Files, FilesJob, Job, PrintJob, ScriptJob

_WORDS = """
    amber basin cedar delta ember fjord grove haven islet jetty knoll ledge maple north ocean pearl
    quarry ridge shore tower upland valley willow yonder
"""
_NAMES = "apple banjo cabin daisy eagle fable gecko hotel index jewel kiosk lemon"
"""Beginnings of the names of files, which a number follows."""
WORDS, NAMES = _WORDS.split(), _NAMES.split()
SUFFIXES = ("log", "csv", "dat", "cfg", "bak")
"""The ends of the names of files to move."""
CHOICES = 13
"""How many files or counts there are, of which the question means one."""
Split = Literal["train", "eval"]
Evenly = Callable[[int], int]
"""Returns a number below the given one, spread evenly over successive tasks."""


def _names(rng: random.Random, split: Split, count: int) -> list[str]:
    """Return different names such as apple37; no training task has one of a held-out task."""
    names: dict[str, None] = {}
    while len(names) < count:
        name = f"{rng.choice(NAMES)}{rng.randint(10, 99)}"
        if held_out(name, 0.5) == (split == "eval"):
            names[name] = None
    return list(names)


def _files(rng: random.Random, split: Split, suffix: str, count: int) -> Files:
    """Return files with different contents."""
    contents: dict[str, None] = {}
    while len(contents) < count:
        contents[_lines(rng)] = None
    names = _names(rng, split, count)
    return tuple((f"{name}.{suffix}", text) for name, text in zip(names, contents, strict=True))


def _chosen(files: Files, evenly: Evenly) -> tuple[str, str]:
    """Return one of the files, each place in the order of their names equally often."""
    return sorted(files)[evenly(len(files))]


def _lines(rng: random.Random) -> str:
    return _text(rng.choices(WORDS, k=rng.randint(3, 6)))


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _print(rng: random.Random, split: Split, evenly: Evenly) -> Job:
    files = _files(rng, split, "txt", CHOICES)
    path, content = _chosen(files, evenly)
    other = next(name for name, _ in files if name != path)
    return PrintJob(
        f"Print the file {path}.",
        files,
        f"cat {path}",
        (
            ("another file", f"cat {other}"),
            ("all files", "cat *.txt"),
            ("two files", f"cat {path} {other}"),
            ("the first line", f"head -n 1 {path}"),
            ("without the last line", f"head -n -1 {path}"),
            ("without the first line", f"tail -n +2 {path}"),
            ("numbered", f"cat -n {path}"),
            ("twice", f"cat {path} {path}"),
            ("with its name", f"echo {path}; cat {path}"),
            ("with a last word", f"cat {path}; echo done"),
            ("as one line", f"echo $(cat {path})"),
            ("backwards", f"tac {path} | head -n 2"),
            ("as an error", f"cat {path} >&2"),
            ("and fails", f"cat {path}; exit 1"),
            ("into a file", f"cat {path} > copy"),
            ("the name alone", f"ls {path}"),
        ),
        printed=content,
    )


def _write(rng: random.Random, split: Split, _: Evenly) -> Job:
    *others, (path, _content) = _files(rng, split, "txt", 3)
    words = rng.sample(WORDS, 3)
    text, other = " ".join(words), others[0][0]
    return FilesJob(
        f'Write the text "{text}" into the file {path}.',
        tuple(others),
        f"echo {text} > {path}",
        (
            ("without the last word", f"echo {' '.join(words[:2])} > {path}"),
            ("another order", f"echo {' '.join(words[::-1])} > {path}"),
            ("with quotes", f"echo '\"{text}\"' > {path}"),
            ("twice", f"echo {text} > {path}; echo {text} >> {path}"),
            ("one word on each line", f"printf '%s\\n' {text} > {path}"),
            ("without spaces", f"echo {''.join(words)} > {path}"),
            ("in capitals", f"echo {text.upper()} > {path}"),
            ("into another file", f"echo {text} > {other}"),
            ("into a wrong name", f"echo {text} > {path.removesuffix('.txt')}"),
            ("printed", f"echo {text}"),
            ("into a folder", f"mkdir {path}; echo {text} > {path}/{path}"),
            ("a link", f"echo {text} > text; ln -s text {path}"),
            ("without rights", f"echo {text} > {path}; chmod 000 {path}"),
            ("and the others removed", f"rm *.txt; echo {text} > {path}"),
        ),
        made=((path, text),),
    )


def _count(rng: random.Random, split: Split, evenly: Evenly) -> Job:
    """Return a job whose answer is each number from 0 to 12 equally often.

    The file has one word for each of these counts, and each word also in lines that are more than
    the word, so that nothing but the question tells which word is meant.
    """
    path, other = (f"{name}.txt" for name in _names(rng, split, 2))
    words = rng.sample(WORDS, CHOICES)
    count = evenly(CHOICES)
    word, lines = words[count], list[str]()
    for times, of_word in enumerate(words):
        lines += [of_word] * times
        lines += [f"{of_word} {rng.choice(WORDS)}", f"{of_word}s", of_word.capitalize()]
    rng.shuffle(lines)
    into = "> answer.txt"
    return FilesJob(
        f"How many lines of {path} are the word {word}? Write the number into answer.txt.",
        ((path, _text(lines)), (other, _lines(rng))),
        f"grep -cx {word} {path} {into}",
        (
            ("lines with the word", f"grep -c {word} {path} {into}"),
            ("lines that begin with it", f"grep -c ^{word} {path} {into}"),
            ("lines that end with it", f"grep -ci {word}$ {path} {into}"),
            ("in any case", f"grep -cix {word} {path} {into}"),
            ("as a whole word", f"grep -cw {word} {path} {into}"),
            ("its places", f"grep -o {word} {path} | wc -l {into}"),
            ("other lines", f"grep -cxv {word} {path} {into}"),
            ("all lines", f"wc -l < {path} {into}"),
            ("all files", f"grep -cx {word} *.txt {into}"),
            ("with the name", f"grep -cxH {word} {path} {into}"),
            ("one more", f"echo $(( $(grep -cx {word} {path}) + 1 )) {into}"),
            ("one less", f"echo $(( $(grep -cx {word} {path}) - 1 )) {into}"),
            ("the lines themselves", f"grep -n {word} {path} {into}"),
            ("printed", f"grep -cx {word} {path}"),
            ("into another file", f"grep -cx {word} {path} > {word}.txt"),
            ("a link", f"grep -cx {word} {path} > n; ln -s n answer.txt"),
            ("over the file", f"grep -cx {word} {path} {into}; cp answer.txt {path}"),
        ),
        made=(("answer.txt", str(count)),),
    )


def _sort(rng: random.Random, split: Split, evenly: Evenly) -> Job:
    files = _files(rng, split, "txt", CHOICES)
    while True:
        lines = rng.choices(WORDS, k=rng.randint(11, 14))
        distinct = sorted(set(lines))
        apart = [word for word, next_word in pairwise([*lines, ""]) if word != next_word]
        by_second = sorted(distinct, key=lambda word: word[1:])
        if len(apart) > len(distinct) and distinct not in (list(dict.fromkeys(lines)), by_second):
            break
    path, _ = _chosen(files, evenly)
    contents = tuple(
        (name, _text(rng.choices(WORDS, k=rng.randint(11, 14)) if name != path else lines))
        for name, _ in files
    )
    other, into = next(name for name, _ in files if name != path), "> words.txt"
    return FilesJob(
        f"Write the distinct words of {path} into words.txt, one on each line, in alphabetical "
        "order.",
        contents,
        f"sort -u {path} {into}",
        (
            ("words more than once", f"sort {path} {into}"),
            ("without an order", f"uniq {path} {into}"),
            ("each once, without an order", f"awk '!s[$0]++' {path} {into}"),
            ("equal neighbours once", f"uniq {path} | sort {into}"),
            ("backwards", f"sort -ur {path} {into}"),
            ("with counts", f"sort {path} | uniq -c {into}"),
            ("those that repeat", f"sort {path} | uniq -d {into}"),
            ("those that do not repeat", f"sort {path} | uniq -u {into}"),
            ("of all files", f"sort -u *.txt {into}"),
            ("of another file", f"sort -u {other} {into}"),
            ("on one line", f"echo $(sort -u {path}) {into}"),
            ("without the last", f"sort -u {path} | head -n -1 {into}"),
            ("without the first", f"sort -u {path} | tail -n +2 {into}"),
            ("by their second letter", f"sort -u {path} | sort -k 1.2 {into}"),
            ("printed", f"sort -u {path}"),
            ("over the file", f"sort -u {path} -o {path}; cp {path} words.txt"),
            ("a link", f"sort -u {path} > w; ln -s w words.txt"),
        ),
        made=(("words.txt", _text(distinct)),),
    )


def _move(rng: random.Random, split: Split, evenly: Evenly) -> Job:
    suffix, folder = rng.choice(SUFFIXES), WORDS[evenly(len(WORDS))]
    wrong = rng.choice([word for word in WORDS if word != folder])
    ended, (*others, (near, text)) = (
        _files(rng, split, suffix, 3),
        _files(rng, split, "txt", 3),
    )
    files = (*ended, *others, (near.replace(".txt", f".{suffix}.txt"), text))
    names = [path for path, _ in ended]
    move = f"mkdir {folder} && mv *.{suffix} {folder}/"
    back = "; ".join
    return FilesJob(
        f"Move every file whose name ends in .{suffix} into a new folder {folder}.",
        files,
        move,
        (
            ("copied", f"mkdir {folder}; cp *.{suffix} {folder}/"),
            ("all files", f"mkdir {folder}; mv *.* {folder}/"),
            ("every name that holds it", f"mkdir {folder}; mv *.{suffix}* {folder}/"),
            ("one of them", f"mkdir {folder}; mv {names[0]} {folder}/"),
            ("all but one", f"{move} && mv {folder}/{names[0]} ."),
            ("into another folder", f"mkdir {wrong}; mv *.{suffix} {wrong}/"),
            ("into a folder in it", f"mkdir -p {folder}/{wrong}; mv *.{suffix} {folder}/{wrong}/"),
            ("without a folder", f"mv *.{suffix} {folder}"),
            ("empty files", f"{move}; for f in {folder}/*; do : > $f; done"),
            ("links to them", f"{move}; for f in {folder}/*; do ln -s $f .; done"),
            ("hard links", f"mkdir {folder}; ln *.{suffix} {folder}/"),
            ("links in the folder", f"mkdir {folder}; cd {folder}; ln -s ../*.{suffix} ."),
            ("pipes in their place", f"{move}; {back(f'mkfifo {name}' for name in names)}"),
            ("folders in their place", f"{move}; mkdir {' '.join(names)}"),
            (
                "unreadable ones left",
                f"mkdir {folder}; cp *.{suffix} {folder}/; chmod 0 *.{suffix}",
            ),
            ("without rights", f"{move}; chmod 0 {folder}/*"),
            ("with other rights", f"{move}; chmod 777 {folder}/*"),
            ("renamed", f"{move}; cd {folder}; for f in *; do mv $f $f.old; done"),
            ("copies left", f"mkdir {wrong}; cp *.{suffix} {wrong}; {move}"),
            ("the others removed", f"{move}; rm *.txt"),
        ),
        moved=tuple((path, f"{folder}/{path}") for path in names),
    )


def _script(rng: random.Random, split: Split, _: Evenly) -> Job:
    path = f"{_names(rng, split, 1)[0]}.sh"
    question = (
        f"Write a shell script {path} that reads lines such as `{rng.choice(WORDS)} "
        f"{rng.randint(1, 99)}` from its standard input, and prints the sum of the numbers; 0 if "
        "there is no line."
    )

    def script(before: str = "", end: str = "print s + 0", *, each: str = "s += $2") -> str:
        """Return a command that writes a script, `before` the program or behind it with ;."""
        program = f"awk '{{{each}}} END {{{end}}}'"
        text = program + before if before.startswith(";") else before + program
        return f"cat > {path} <<'END'\n{text}\nEND"

    return ScriptJob(
        question,
        _files(rng, split, "txt", 1),
        script(),
        (
            ("four digits", script(end="print s % 10000")),
            ("six digits", script(end="print s % 1000000")),
            ("nine lines", script("head -n 9 | ")),
            ("a hundred lines", script("head -n 100 | ")),
            ("without the first line", script("tail -n +2 | ")),
            ("equal lines once", script("sort -u | ")),
            ("equal neighbours once", script("uniq | ")),
            ("the exit code 1", script("; exit 1")),
            ("nothing for no line", script(end="print s")),
            ("the last number", script(each="s = $2")),
            ("the largest number", script(each="if ($2 > s) s = $2")),
            ("the number of lines", script(each="s++")),
            ("the words", script(each="s += $1")),
            ("a mean", script(end="print NR ? s / NR : 0")),
            ("each sum", script(each="s += $2; print s")),
            ("with a word", script(end='print "sum", s + 0')),
            ("one too many", script(end="print s + 1")),
            ("three digits of each", script(each="s += substr($2, 1, 3)")),
            ("one line", f"echo 'read w n; echo $((n + 0))' > {path}"),
            ("an example's sum", f"echo 'echo 42' > {path}"),
            ("a link", f"{script()}\nmv {path} s; ln -s s {path}"),
            ("another name", script().replace(path, "script.sh")),
        ),
        path,
        tuple(WORDS),
    )


FAMILIES: tuple[Callable[[random.Random, Split, Evenly], Job], ...] = (
    _print,
    _write,
    _count,
    _sort,
    _move,
    _script,
)
"""What is asked at levels 0.0, 0.2, 0.4, 0.6, 0.8 and 1.0."""


def draw_job(key: TaskKey) -> Job:
    """Return the job of a key, whose level is from 0 to 1."""

    def evenly(choices: int) -> int:
        """Return a number below `choices`; each comes once in so many successive tasks."""
        block, place = divmod(key.index, choices)
        return replace(key, index=block).rng("order").sample(range(choices), choices)[place]

    return FAMILIES[int(key.level * 5 + 1e-9)](key.rng(), key.split, evenly)
