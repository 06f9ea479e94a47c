#!/usr/bin/env bash
# Makes .venv-NAME with the lowest or the newest versions that pyproject.toml allows: `environment.sh lowest`. Python is
# the lowest or the newest one, too, if it is installed, also by pyenv; PYTHON names another one.
# uv resolves; pip installs, from the indexes that it is configured for. On Linux PyPI has torch only as a build for
# CUDA. The libraries of that, several GB, are left out, and empty ones stand in for them, since torch looks for them when
# it is imported. CUDA's own runtime library, of 1 MB, is kept: it says that there is no GPU, and nothing else is called.
# Where the configured index has a build for processors alone, as PyTorch's own does, pip takes that instead.
set -euo pipefail
name=$1 && cd "$(dirname "${BASH_SOURCE[0]}")/.."
case $name in
lowest) resolution=lowest-direct of_python=(3.10) ;;
newest) resolution=highest of_python=(3.14 3.13) ;;
*) echo "lowest or newest, not $name" >&2 && exit 2 ;;
esac
python=${PYTHON:-}
for version in "${of_python[@]}"; do
    for found in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version."*/bin/python; do
        [ -n "$python" ] || ! "$found" -m venv --help >/dev/null 2>&1 || python=$found
    done
done
bin=$PWD/.venv-$name/bin && versions=$PWD/.venv-$name/versions.txt
rm -rf ".venv-$name" && "${python:-python3}" -m venv ".venv-$name"
pip() { "$bin/python" -m pip --disable-pip-version-check --quiet --quiet "$@"; }

pip install uv
UV_CONSTRAINT=$("$bin/python" -m pip config list | sed -n "s/^global.constraint='\(.*\)'$/\1/p") "$bin/uv" pip compile --quiet --python "$bin/python" \
    --resolution $resolution --extra dev --extra demo --no-header --no-annotate pyproject.toml -o "$versions"
sed -i -E '/^nvidia-cuda-runtime/!{/^(nvidia-|cuda-|triton=)/d}' "$versions"
pip install --no-deps -r "$versions"
pip install --no-deps --no-build-isolation -e .

cd "$("$bin/python" -c 'import importlib.util as find; print(find.find_spec("torch").submodule_search_locations[0])')/lib"
shopt -s nullglob && libraries=(lib*.so) && [ ${#libraries[@]} -gt 0 ] && of_cuda=$(readelf -dW "${libraries[@]}" |
    sed -nE 's/.*NEEDED.*\[(lib(cu|nccl|nv)[^]]*)\]/\1/p' | grep -v ^libcuda | sort -u) || exit 0
stand_in=$(mktemp -d) && trap 'rm -r "$stand_in"' EXIT
nm -D --undefined-only --format=posix "${libraries[@]}" 2>/dev/null | sed -nE 's/^((__)?(cu|p?nccl|nv)\w*).*/\1/p' | sort -u |
    sed 's/.*/int &() { return 1; }/' >"$stand_in/calls.c"
for library in $of_cuda; do
    [ -e "$library" ] && continue
    version=$(objdump -p "${libraries[@]}" | awk -v name="$library:" '/required from/ { of = $3 } of == name && /^ *0x/ { print $4 }' | head -1)
    echo "${version:-$library} { *; };" >"$stand_in/version"
    gcc -w -shared -fPIC -o "$library" -Wl,-soname,"$library",--version-script="$stand_in/version" "$stand_in/calls.c"
done
