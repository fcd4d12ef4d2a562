#!/usr/bin/env bash
# Drawn photographs and captions -> a trained, measured matcher. Run it as `make demo`.
set -euo pipefail
bin=${BIN:-.venv/bin}
demo=${DEMO:-demo}

step() {
  printf '\n\033[1m$ %s\033[0m\n' "$*"
  "$bin/$1" "${@:2}"
}

rm -rf "$demo/sample" "$demo/data" "$demo/base" "$demo/camp" "$demo/report"
mkdir -p "$demo"
step camp-data sample "$demo/sample"
step camp-data import "$demo/sample/karpathy.json" --format karpathy --out "$demo/data"
step camp-data extract "$demo/data" --model scenes-tiny
step camp-data convert "$demo/data" --features scenes-tiny --store hdf5 --name scenes-tiny-hdf5
step camp-data build-vocab "$demo/data" --min-count 1
step camp-data verify "$demo/data"
step camp-data info "$demo/data"
step camp-data show "$demo/data" --image scene_001100.jpg --features scenes-tiny --out "$demo/regions.png"
step camp train "$demo/data" --config base_sample --features scenes-tiny --out "$demo/base"
# CAMP starts from the base model's encoders. The recipe has more epochs; these two fit a demonstration.
step camp train "$demo/data" --config camp_sample --features scenes-tiny --init "$demo/base" --out "$demo/camp" \
  --set schedule.epochs=2 --set schedule.drop_epochs=[]
step camp explain "$demo/camp" --image scene_001100.jpg --caption-id 5500 --out "$demo/explanation.png"
step camp report "$demo/camp" --candidates "$demo/base" --out "$demo/report"
printf '\nThe base model, each modality on its own:\n'
step camp eval "$demo/base"
printf '\nCAMP, words and regions together:\n'
step camp eval "$demo/camp"
printf '\nPictures and pages: %s\n' "$demo/regions.png $demo/explanation.png $demo/report/index.html"
