#!/usr/bin/env sh
# Compile loops.c: `pip install ziglang==0.17.1`, then `sh build.sh`. The same source gives the same
# bytes. A test compares the digests, and builds anew where this ziglang is installed.
set -e
cd "$(dirname "$0")"
python3 -m ziglang cc -target wasm32-emscripten -mcpu=generic+simd128 -O3 -fPIC \
  -fvisibility=hidden -c -o loops.o loops.c
python3 -m ziglang wasm-ld --experimental-pic -shared --strip-all -o loops.so loops.o
rm loops.o
sha256sum build.sh loops.c loops.so > loops.sha256
