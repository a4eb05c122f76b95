"""Asks the GPU plugins of JAX releases which flags of XLA_FLAGS they know: remakes ../../xlaflags.txt.

  python3 flags.py [--dir DIR] [RELEASE...]

Needs what xla.py needs, and uses its stand-in. Each release is fetched (jax-cuda12-pjrt
of PyPI, 100 to 200 MB); its answers stay in DIR/flags, and a release with answers there is
not asked again. The values of words
are asked from 0.10 on. A release takes half a minute.

A flag is a word xla_... that stands in the plugin. Which words are flags, and what values
they take, is what XLA says when the plugin makes a client with XLA_FLAGS set to them: a
process of its own for each question, forked after the plugin was loaded. jaxlib's own copy
of XLA, for the CPU, knows the same flags (compared in 0.10.1, 0.11.2 and 0.12.0.1).
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import tables
import xla

# All releases on PyPI, 2026-11, that look at the flags when a client is made (0.4.31 and later).
RELEASES = """0.4.31 0.4.33 0.4.34 0.4.35 0.4.36 0.4.38
0.5.1 0.5.3 0.6.0 0.6.1 0.6.2 0.7.0 0.7.1 0.7.2 0.8.0 0.8.1 0.8.2 0.8.3 0.9.0 0.9.0.1 0.9.1 0.9.2
0.10.0 0.10.1 0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.12.0.1""".split()


def ask_flags(path, answer, words_too):
    """In a process of its own, with the stand-in: {flag: kind}. words_too: the values of words."""
    plugin = xla.Plugin(path)
    setenv = ctypes.CDLL(None).setenv

    def say(flags):
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(w, 2)
            setenv(b"XLA_FLAGS", flags.encode(), 1)
            try:
                plugin.create([])
                os.write(2, b"CREATED\n")
            except xla.PluginError as e:
                os.write(2, ("CREATED, %s\n" % e.text).encode())
            os._exit(0)
        os.close(w)
        with os.fdopen(r, "rb") as f:
            out = f.read().decode(errors="replace")
        os.waitpid(pid, 0)
        return out

    def taken(words, value, found):
        """Adds those of words to found that are flags with this value after them, refused or not."""
        out = say(" ".join("--" + w + value for w in words))
        # Up to 0.4.38 what stood at the end is repeated after two blanks, known or not.
        unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*?)(?:  .*| ?)\n", out)
        if unknown or "CREATED" in out:
            names = {f[2:].split("=")[0] for f in unknown.group(1).split(" ")} if unknown else set()
            found.update(w for w in words if w not in names)
        elif len(words) == 1:  # its value is refused
            found.update(words)
        else:
            taken(words[:len(words) // 2], value, found)
            taken(words[len(words) // 2:], value, found)

    def accepts(flag, value):
        return "CREATED" in say("--%s=%s" % (flag, value))

    def numbers(flags, value):
        """Those of flags whose parser of numbers refuses the value: it names each."""
        out = say(" ".join("--%s=%s" % (f, value) for f in flags))
        return {f for f in re.findall(r"interpret value \S+ for flag (\w+)\.", out) if f in flags}

    def word(flag):
        """Of a flag that is no number: text, or the words that it takes."""
        if accepts(flag, "x"):
            return "text"
        plain = {"", "true", "false", "0", "1", "on", "off", "none"}
        known = sorted(v for v in values[flag] | plain if accepts(flag, v)) if values.get(flag) else []
        known = [v for v in known if v == v.lower() or v.lower() not in known]
        return "word" + (":" + ",".join(known) if known and not accepts(flag, ",".join(known[:2] + known[:1])) else "")

    data = pathlib.Path(path).read_bytes()
    words = sorted({m.group(1).decode() for m in re.finditer(rb"(?=(xla_[a-z0-9_]{2,80})\0)", data)})
    bools, flags = set(), set()
    for i in range(0, len(words), 100):
        taken(words[i:i + 100], "", bools)
    rest = [w for w in words if w not in bools]
    for i in range(0, len(rest), 50):
        taken(rest[i:i + 50], "=1", flags)
    values = enums(data) if words_too else {}
    numeric = numbers(sorted(flags), "x")
    whole = numbers(sorted(numeric), "1.5")
    small = numbers(sorted(whole), "99999999999")
    kinds = {w: "bool" for w in bools}
    kinds.update({w: "int32" if w in small else "int64" if w in whole else "float" if w in numeric else word(w) for w in flags})
    out = {"kinds": kinds}
    # What a bool takes, in all releases asked the same for each of them.
    one = "xla_cpu_enable_fast_math"
    out["bools"] = [v for v in ("true", "false", "1", "0", "True", "TRUE", "yes", "no", "t", "f", "on", "off", "2", "") if accepts(one, v)]
    out["numbers"] = [v for v in ("3", "+3", "-3", '" 3"', '"3 "', "03", "0x3", "3abc", "3.", "") if accepts("xla_backend_optimization_level", v)]
    out["unknown"] = [l for l in say("--no_such_flag=1 --nor_this").split("\n") if "nknown" in l][:1]
    out["both"] = [l for l in say("--no_such_flag=1 --%s=bad" % one).split("\n") if one in l or "Check" in l or "nknown" in l][:3]
    out["file"] = [l for l in say("no_such_file").split("\n") if "no_such_file" in l][:1]
    pathlib.Path(answer).write_text(json.dumps(out))
    os._exit(0)


def number(release):
    return tuple(int(n) for n in release.split("."))


def fields(data):
    """Yields (number, value) of a protobuf message, up to what is none; lengths only within data."""
    at = 0

    def varint():
        nonlocal at
        n = shift = 0
        while at < len(data):
            b = data[at]
            n, shift, at = n | (b & 127) << shift, shift + 7, at + 1
            if b < 128:
                return n
        raise ValueError

    try:
        while at < len(data):
            tag = varint()
            if tag >> 3 > 200:
                return
            n = varint()
            if tag & 7 == 2:
                if at + n > len(data):
                    return
                yield tag >> 3, data[at:at + n]
                at += n
            elif tag & 7 == 0:
                yield tag >> 3, n
            else:
                return
    except ValueError:
        return


def enums(data):
    """What may be the values of a flag: the names of the enum of its field in DebugOptions, as the
    plugin's own description of xla.proto has them, with and without what all begin with."""
    at = data.find(b"\n\rxla/xla.proto")
    found, types = {}, {}

    def walk(message, path):
        for n, v in fields(message):
            if n == 4:
                name = path + "." + next(x for k, x in fields(v) if k == 1).decode()
                types[name] = [next(x for k, x in fields(e) if k == 1).decode() for k, e in fields(v) if k == 2]
            elif n == 3:
                walk(v, path + "." + next(x for k, x in fields(v) if k == 1).decode())

    names = []
    for n, v in fields(data[at:at + 200000]) if at >= 0 else ():
        if n == 12:  # the syntax, which comes last
            break
        if n == 4:  # a message
            name = ".xla." + next(x for k, x in fields(v) if k == 1).decode()
            walk(v, name)
            if name == ".xla.DebugOptions":
                names = [dict((k, x) for k, x in fields(f)) for k, f in fields(v) if k == 2]
        elif n == 5:
            name = ".xla." + next(x for k, x in fields(v) if k == 1).decode()
            types[name] = [next(x for k, x in fields(e) if k == 1).decode() for k, e in fields(v) if k == 2]
    for f in names:
        words = types.get(f.get(6, b"").decode(), [])
        prefix = os.path.commonprefix(words)
        prefix = prefix[:prefix.rfind("_") + 1]
        found[f[1].decode()] = {w for word in words for w in (word, word.lower(), word[len(prefix):], word[len(prefix):].lower()) if w}
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dir", type=pathlib.Path)
    p.add_argument("releases", nargs="*")
    args = p.parse_args()
    asker = xla.Asker((args.dir or pathlib.Path(tempfile.mkdtemp(prefix="xla-"))).resolve(), "12")
    (asker.folder / "flags").mkdir(exist_ok=True)
    env = xla.clean_env()
    env.update(LD_LIBRARY_PATH=str(asker.folder / "lib"), TF_CPP_MIN_LOG_LEVEL="2")
    for release in args.releases or RELEASES:
        answer = asker.folder / "flags" / (release + ".json")
        if not answer.exists():
            path = asker.plugin(release)
            subprocess.run([sys.executable, __file__, "--ask-flags", path, str(answer), "words" if number(release) >= (0, 10) else ""], check=True, env=env)
            print("asked", release, flush=True)
    answers = {r: json.loads((asker.folder / "flags" / (r + ".json")).read_text()) for r in RELEASES
               if (asker.folder / "flags" / (r + ".json")).exists()}
    lines = tables.flag_lines(list(answers), [a["kinds"] for a in answers.values()])
    (xla.HERE.parents[1] / "xlaflags.txt").write_text(tables.FLAGS_HEAD % " ".join(answers) + "".join(line + "\n" for line in lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask-flags"]:
        ask_flags(*sys.argv[2:5])
    else:
        main()
