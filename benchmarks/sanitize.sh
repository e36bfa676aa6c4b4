#!/usr/bin/env bash
# Builds the native kernels with AddressSanitizer and UndefinedBehaviorSanitizer into a scratch folder, and feeds the
# decoders the corpus of mutated frames. Usage: benchmarks/sanitize.sh PYTHON [COUNT]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1")
count=${2:-100000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake=$(command -v cmake || echo "$(dirname "$python")/cmake")
"$cmake" -S . -B "$work/build" -DCMAKE_BUILD_TYPE=Debug -DSPARSEWIRE_SANITIZE=ON -DPython_EXECUTABLE="$python" >"$work/log" ||
  { cat "$work/log"; exit 1; }
"$cmake" --build "$work/build" --target _native -j 2 >"$work/log" || { cat "$work/log"; exit 1; }

# The package as it is, with the sanitized extension in place of the built one.
mkdir "$work/package"
cp -r src/sparsewire "$work/package/"
rm -f "$work"/package/sparsewire/kernels/_native*.so
cp "$work"/build/_native*.so "$work/package/sparsewire/kernels/"

# -S: an editable install's import hook would put the built extension first again.
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
export PYTHONPATH="$work/package:$site" PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)"
"$python" -S -c "from sparsewire import kernels; assert kernels.native().__file__.startswith('$work')"
"$python" -S benchmarks/fuzz.py --count "$count" --kernels native
