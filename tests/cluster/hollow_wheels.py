"""Wheels in place of CUDA's libraries: the same files with the same symbols, and nothing behind them.

Torch comes from a package index with 3.5 GB of libraries that no pod of these tests can use. Where no index with a
torch for CPUs alone can be reached, the images for tests are built with these instead, in kilobytes: torch loads
them, finds no device, and calls none. `python hollow_wheels.py FOLDER` writes one for each large library that this
interpreter has installed; none, if its torch came without.
"""

import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

LABEL = "hollow"  # pip takes `1.2+hollow` where `1.2` is asked for, and rather than it
SMALL_BYTES = 20 << 20  # what is smaller stays real: the runtime, with which torch looks for devices


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    needed = needed_by(distribution("torch"))
    for each in distributions():
        if each.name.startswith(("nvidia-", "triton")) and size_bytes(each) > SMALL_BYTES:
            # Without any file: torch takes a folder `triton` for the package.
            libraries = [] if each.name == "triton" else installed(each)
            write_wheel(folder, each, [path for path in libraries if path.name in needed])


def needed_by(each: Distribution) -> set[str]:
    """The names of the libraries without which those of a distribution cannot be loaded."""
    libraries = [str(path) for path in installed(each) if ".so" in path.suffixes]
    output = subprocess.run(["readelf", "--dynamic", *libraries], check=True, capture_output=True, text=True).stdout
    return {line.split("[")[1].rstrip("]") for line in output.splitlines() if "(NEEDED)" in line}


def installed(each: Distribution) -> list[Path]:
    return [path for path in (Path(str(file.locate())) for file in each.files or ()) if path.is_file()]


def size_bytes(each: Distribution) -> int:
    """What a distribution takes on disk."""
    return sum(path.stat().st_size for path in installed(each))


def write_wheel(folder: Path, each: Distribution, libraries: list[Path]) -> None:
    """A wheel of a distribution's name, with hollow libraries where its own lie."""
    version = f"{each.version}+{LABEL}"
    stem = f"{each.name.replace('-', '_')}-{version}"
    root = Path(str(each.locate_file("")))
    held = {str(path.relative_to(root)): hollow(path) for path in libraries}
    held[f"{stem}.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: {each.name}\nVersion: {version}\n".encode()
    held[f"{stem}.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content in held.items())
    held[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n".encode()
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in held.items():
            wheel.writestr(zipfile.ZipInfo(name), content)  # no time of day: an unchanged wheel keeps its layer


def digest(content: bytes) -> str:
    """As a wheel's RECORD wants it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def hollow(library: Path) -> bytes:
    """A shared library of the same name whose functions, under the same names and versions, all return 0."""
    listed = ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", str(library)]
    versions: dict[str, list[str]] = defaultdict(list)
    for line in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines():
        *_, kind, symbol = line.split()
        name, _, version = symbol.partition("@@")
        if kind != "A" and "@" not in name:  # A: the name of a version; one @: what only older programs ask for
            versions[version].append(name)
    with tempfile.TemporaryDirectory() as scratch:
        code, script, created = Path(scratch, "code.s"), Path(scratch, "versions"), Path(scratch, library.name)
        names = [name for each in versions.values() for name in each]
        code.write_text("".join(f".globl {name}\n{name}:\n" for name in names) + "xor %eax, %eax\nret\n")
        nodes = [f"{version} {{ global: {'; '.join(each)}; }};\n" for version, each in versions.items() if version]
        script.write_text("".join(nodes))
        link = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{library.name}", "-o", str(created), str(code)]
        subprocess.run([*link, f"-Wl,--version-script={script}"] if nodes else link, check=True)
        return created.read_bytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
