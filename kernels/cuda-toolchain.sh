#!/usr/bin/env bash
# Fetch CUDA's compiler from PyPI, to build the feature `cuda` on a machine without a GPU, a driver or a CUDA installation.
#
#   eval "$(kernels/cuda-toolchain.sh [DIR])"     # DIR defaults to target/cuda-toolchain below the current directory
#
# Prints `export` lines, progress goes to stderr; a second run with the same pins only prints them. Needs bash, python3 with pip,
# and g++, nvcc's host compiler. x86-64 Linux.
set -euo pipefail

# 13.0: a 580 driver refuses what later compilers make.
pins='
nvidia-cuda-nvcc==13.0.88    --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-nvvm==13.0.88         --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
nvidia-cuda-crt==13.0.88     --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cccl==13.0.85    --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
'
dir=${1:-target/cuda-toolchain}
mkdir -p "$dir"
root=$(cd "$dir" && pwd)/cuda-13.0

if ! cmp -s "$root/.pins" <(printf '%s' "$pins"); then
  [ "$(uname -sm)" = 'Linux x86_64' ] || { echo "cuda-toolchain: x86-64 Linux only" >&2; exit 1; }
  command -v g++ >/dev/null || { echo "cuda-toolchain: g++ is missing (Debian: apt-get install g++)" >&2; exit 1; }
  work=$(mktemp -d "$dir/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  printf '%s' "$pins" >"$work/pins.txt"
  echo "cuda-toolchain: fetching CUDA 13.0's compiler (about 100 MB) into $dir" >&2
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
    --dest "$work/wheels" --requirement "$work/pins.txt" >&2
  # The wheels' nvidia/cu13/ trees, laid over each other.
  python3 - "$work" <<'PY'
import pathlib, shutil, sys, zipfile
work = pathlib.Path(sys.argv[1])
for wheel in sorted(work.glob("wheels/*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            top, _, path = member.filename.partition("nvidia/cu13/")
            if top or not path or member.is_dir() or path.startswith((".metadata/", "lib/")):
                continue
            out = work / "root" / path
            out.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(out, "wb") as target:
                shutil.copyfileobj(source, target)
            if path.startswith(("bin/", "nvvm/bin/")):
                out.chmod(0o755)
PY
  rm -rf "$root"
  mv "$work/root" "$root"
  "$root/bin/nvcc" --version >&2
  printf '%s' "$pins" >"$root/.pins" # last: its presence says that the tree is whole
fi

printf 'export CUDA_HOME=%q\n' "$root"
printf 'export NVCC=%q\n' "$root/bin/nvcc"
