#!/bin/sh
# Every trial of the trade-off: `sh tradeoff-run.sh BASE SUBSETS OUT`, SUBSETS being what subsets.py wrote.
# It resumes: what is trained already is not trained again. The folder's tables then hold all trials.
set -e
base=$(realpath "$1"); out=$(realpath -m "$3"); cd "$2"
tweets="--task ./airline --task ./corporate_messaging --task ./disasters --task ./global_warming"
try() {
    adapter-probe tradeoff --base "$base" --out "$out" --dtype bfloat16 --seeds 1 --sizes= --top-k= --no-layernorm \
        --no-full "$@"
}
