#!/usr/bin/env bash
# Drawn photographs and captions -> a trained, measured matcher. Run it as `make demo`.
set -euo pipefail
bin=${BIN:-.venv/bin}
demo=${DEMO:-demo}

step() {
  printf '\n\033[1m$ %s\033[0m\n' "$*"
  "$bin/$1" "${@:2}"
}

rm -rf "$demo/sample" "$demo/data"
mkdir -p "$demo"
step camp-data sample "$demo/sample"
step camp-data import "$demo/sample/karpathy.json" --format karpathy --out "$demo/data"
step camp-data info "$demo/data"
